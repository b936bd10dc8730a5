"""A table's numbers as `privaudit table` wrote them, and whether they show a paper's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError
from scipy.special import stdtrit

from privaudit.core.errors import ConfigError
from privaudit.core.storage import parse_json, read_bytes
from privaudit.evaluation.tables.expectations import Expectation
from privaudit.evaluation.tables.plan import TablePlan

Place = tuple[str, str, str, str]  # row, column, metric, over
Answer = Literal["yes", "no", "cannot be known here"]
CONFIDENCE = 0.95  # of all steps of an expectation together


@dataclass(frozen=True)
class StoredCell:
    """One number over seeds.

    Attributes:
        mean: As printed.
        spread: Standard deviation over seeds; None with fewer than two.
        count: Seeds.
        by_seed: Each seed's own, where they are stored.
    """

    mean: float
    spread: float | None
    count: int
    by_seed: Mapping[int, float]

    def times(self, factor: float) -> "StoredCell":
        """Return it so many times."""
        spread = None if self.spread is None else self.spread * factor
        by_seed = {seed: value * factor for seed, value in self.by_seed.items()}
        return StoredCell(self.mean * factor, spread, self.count, by_seed)


@dataclass(frozen=True)
class StoredTable:
    """What a table's JSON holds.

    Attributes:
        plan: As it was run.
        cells: Those with a number.
    """

    plan: TablePlan
    cells: Mapping[Place, StoredCell]

    @property
    def seeds(self) -> tuple[int, int]:
        """The fewest and the most seeds of a cell."""
        counts = [cell.count for cell in self.cells.values()] or [0]
        return min(counts), max(counts)


@dataclass(frozen=True)
class Judgement:
    """Whether stored numbers are as an expectation says.

    Attributes:
        answer: "yes": every step holds beyond chance; "no": one is reversed beyond it.
        held: Steps that hold beyond chance.
        by_means: Steps that hold by means alone.
        reversed: Steps that are the other way round beyond it.
        steps: All of them.
    """

    answer: Answer
    held: int
    by_means: int
    reversed: int
    steps: int


def read_stored(path: Path) -> StoredTable:
    """Return a stored table.

    Raises:
        MissingFileError: There is none.
        ConfigError: It is not what `privaudit table` writes.
    """
    content = parse_json(read_bytes(path), path)
    try:
        plan = TablePlan.model_validate(content["plan"])
        cells = TypeAdapter(list[dict[str, Any]]).validate_python(content["cells"])
        runs = TypeAdapter(list[dict[str, Any]]).validate_python(content["runs"])
        found = {
            (str(c["row"]), str(c["column"]), str(c["metric"]), str(c["over"])):
            StoredCell(float(c["mean"]), c["sd"], int(c["n"]), _by_seed(plan, runs, c))
            for c in cells
            if c["mean"] is not None and not c["failed"]
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ConfigError(
            f"{path} is not what `privaudit table` writes ({reason}). Run the plan "
            "again, and put its .json there."
        ) from None
    return StoredTable(plan, found)


def _by_seed(
    plan: TablePlan, runs: list[dict[str, Any]], cell: Mapping[str, Any]
) -> dict[int, float]:
    (row,) = (row for row in plan.rows if row.label == cell["row"])
    name = f"{plan.read_as(cell['metric'], row)}_{cell['over']}"
    return {
        int(run["seed"]): float(run[name])
        for run in runs
        if (run["row"], run["column"]) == (cell["row"], cell["column"])
        and run.get(name) is not None
    }


def judge(expected: Expectation, stored: StoredTable | None) -> Judgement:
    """Hold stored numbers to an expectation.

    A step holds if the interval of its difference is above zero, or within the points
    that the expectation allows; all steps together at 95 % (Bonferroni). Seeds are
    paired where each one's number is stored; where only means and standard deviations
    are, it is Welch's interval.

    Source: Welch, "The generalization of Student's problem when several different
    population variances are involved", Biometrika 1947.
    """
    if stored is None:
        return Judgement("cannot be known here", 0, 0, 0, 0)
    steps = expected.steps([column.name for column in stored.plan.columns])
    gaps = [_difference(stored, expected, step, len(steps)) for step in steps]
    signs = [_sign(expected, gap) for gap in gaps]
    means = [_sign(expected, gap and replace(gap, half=0.0)) for gap in gaps]
    held, reversed_ = signs.count(1), signs.count(-1)
    answer: Answer = "cannot be known here"
    if reversed_:
        answer = "no"
    elif steps and held == len(steps):
        answer = "yes"
    return Judgement(answer, held, means.count(1), reversed_, len(steps))


@dataclass(frozen=True)
class _Gap:
    """A difference of two cells, and half its interval; infinite where none is known."""

    value: float
    half: float


def _sign(expected: Expectation, gap: _Gap | None) -> int:
    """Return 1 for a step that holds, -1 for the reverse, 0 where neither is known."""
    if gap is None:
        return 0
    low, high = gap.value - gap.half, gap.value + gap.half
    if expected.within is not None:
        allowed = expected.within
        if -allowed <= low and high <= allowed:
            return 1
        return -1 if low > allowed or high < -allowed else 0
    return int(low > 0) - int(high < 0)


def _difference(
    stored: StoredTable,
    expected: Expectation,
    step: tuple[tuple[str, str], tuple[str, str]],
    steps: int,
) -> _Gap | None:
    """Return the upper cell less the lower; None where one of them is missing."""
    where = expected.metric, stored.plan.over
    upper, lower = (stored.cells.get((*place, *where)) for place in step)
    if upper is None or lower is None:
        return None
    lower = lower.times(expected.times)
    level = 1 - (1 - CONFIDENCE) / steps
    shared = sorted(upper.by_seed.keys() & lower.by_seed.keys())
    if len(shared) >= 2:
        gaps = np.array([upper.by_seed[s] - lower.by_seed[s] for s in shared])
        error, freedom = float(gaps.std(ddof=1)) / math.sqrt(len(gaps)), len(gaps) - 1.0
        return _gap(float(gaps.mean()), error, freedom, level)
    return _welch(upper, lower, level)


def _welch(upper: StoredCell, lower: StoredCell, level: float) -> _Gap:
    value = upper.mean - lower.mean
    if upper.spread is None or lower.spread is None:
        return _Gap(value, math.inf)
    spreads = [(cell.spread or 0.0, cell.count) for cell in (upper, lower)]
    parts = [(spread**2 / count, count) for spread, count in spreads if spread]
    if not parts:
        return _Gap(value, 0.0)
    variance = sum(part for part, _ in parts)
    below = sum(part**2 / (count - 1) for part, count in parts)
    return _gap(value, math.sqrt(variance), variance**2 / below, level)


def _gap(value: float, error: float, freedom: float, level: float) -> _Gap:
    return _Gap(value, float(stdtrit(freedom, (1 + level) / 2)) * error)
