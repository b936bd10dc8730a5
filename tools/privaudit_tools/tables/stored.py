"""A table's numbers as `privaudit table` wrote them, and whether they show a paper's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from privaudit.core.errors import ConfigError, one_line
from privaudit.core.portable_bits import Provenance
from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.metrics import MEGABYTES, Metric
from privaudit_tools.tables.paper import PaperNumber
from privaudit_tools.tables.parts import Column, TableRow
from privaudit_tools.tables.pieces import read_records
from privaudit_tools.tables.plan import Over, TablePlan
from privaudit_tools.tables.same_cells import has_changed
from privaudit_tools.tables.table import CellSummary, reduced

Place = tuple[str, str, str, str]  # row, column, metric, over
Answer = Literal[
    "yes", "no", "cannot be known here", "cannot be known here (another plan ran)"
]
UNKNOWN: Answer = "cannot be known here"
ANOTHER: Answer = "cannot be known here (another plan ran)"
CONFIDENCE = 0.95  # of several steps together
SEEDS = 3  # with two, equal differences by chance would be too frequent
HALF_UNIT = 0.005  # of a number as printed


@dataclass(frozen=True)
class StoredCell:
    """Each seed's number, and what the paper says."""

    by_seed: Mapping[int, float]
    paper: PaperNumber | None = None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return float(np.mean(list(self.by_seed.values())))

    @property
    def summary(self) -> CellSummary:
        """The cell as a table that was just trained has it."""
        return CellSummary.of(list(self.by_seed.values()), paper=self.paper)


@dataclass(frozen=True)
class StoredTable:
    """What a table's JSON holds.

    Attributes:
        plan: As it was run.
        cells: Those with a number.
        rounds: For how many rounds its runs were trained.
        averaged: How many of their last rounds means over rounds are of, at most.
        computed: With what they were trained, one for each.
    """

    plan: TablePlan
    cells: Mapping[Place, StoredCell]
    rounds: frozenset[int] = frozenset()
    averaged: int = 0
    computed: tuple[Provenance, ...] = ()

    @property
    def seeds(self) -> tuple[int, int]:
        """The fewest and the most seeds of a cell."""
        counts = [len(cell.by_seed) for cell in self.cells.values()] or [0]
        return min(counts), max(counts)

    @property
    def spots(self) -> set[tuple[str, str]]:
        """Rows and columns of which there are numbers."""
        return {(row, column) for row, column, _, _ in self.cells}

    def cell(
        self, row: TableRow, column: Column, metric: Metric, over: Over
    ) -> CellSummary | None:
        """Return what a cell says; None where nothing is stored."""
        found = self.cells.get((row.label, column.name, metric, over))
        return found.summary if found else None

    @property
    def shown(self) -> "StoredTable":
        """The table without rows, columns and seeds of which nothing is stored."""
        seeds = {seed for cell in self.cells.values() for seed in cell.by_seed}
        plan = reduced(self.plan, self.spots, seeds or self.plan.seeds)
        return replace(self, plan=plan)

    def beside(self, plan: TablePlan) -> "StoredTable":
        """Return the table with a plan's words and numbers of the paper for its own."""
        cells = {
            place: replace(cell, paper=plan.printed(place[2], place[0], place[1]))
            for place, cell in self.cells.items()
        }
        metrics = [[p.metrics for p in one.panels] for one in (self.plan, plan)]
        panels = (plan if metrics[0] == metrics[1] else self.plan).panels
        asked = self.plan.model_copy(update={"paper": plan.paper, "panels": panels})
        return replace(self, plan=asked, cells=cells)


@dataclass(frozen=True)
class Judgement:
    """Whether stored numbers are as an expectation says.

    Attributes:
        answer: "yes": every step is significant; "no": one is significantly reversed;
            otherwise, or of numbers of another plan, it is unknown.
        held: Significant steps.
        by_means: Steps that hold in the means, significant or not.
        reversed: Steps that are significantly the other way round.
        steps: All of them.
        ran: Steps both of whose cells were run.
    """

    answer: Answer
    held: int
    by_means: int
    reversed: int
    steps: int
    ran: int = 0


def read_stored(path: Path) -> StoredTable:
    """Return a stored table.

    Raises:
        MissingFileError: There is none.
        ConfigError: It is not what `privaudit table` writes.
    """
    records = read_records(path)
    plan = records.plan
    try:
        found: dict[Place, StoredCell] = {
            (c.row, c.column, c.metric, c.over):
            StoredCell(
                records.by_seed(c), PaperNumber.read(c.paper) if c.paper else None
            )
            for c in records.cells
            if c.mean is not None and not c.failed
        }  # fmt: skip
    except ValueError as error:  # of the paper's numbers
        raise ConfigError(
            f"{path} is not what `privaudit table` writes ({one_line(str(error))[:200]})."
            " Run the plan again, and put its .json there."
        ) from None
    return StoredTable(
        plan.model_copy(update={"paper": _paper(found)}),
        found,
        frozenset(run.rounds for run in records.finished),
        max((run.averaged_rounds for run in records.finished), default=0),
        tuple(run.computed for run in records.finished),
    )


def _paper(cells: Mapping[Place, StoredCell]) -> dict[str, dict[str, Any]]:
    """Return the paper's numbers as a plan has them; JSON has them by cell."""
    paper: dict[str, dict[str, Any]] = {}
    for (row, column, metric, _), cell in cells.items():
        if cell.paper:
            paper.setdefault(metric, {}).setdefault(row, {})[column] = cell.paper
    return paper


def judge(
    expected: Expectation,
    plan: TablePlan,
    stored: StoredTable | None,
    among: int | None = None,
) -> Judgement:
    """Hold stored numbers to an expectation.

    A step holds if the interval of its difference is above zero, or within the points
    that the expectation allows; all of the expectation's steps together at 95 %
    (Bonferroni). One is reversed if its interval is below, all steps of all
    expectations together at 95 %. Seeds are paired. With fewer than three of both, or
    where seeds do not differ though chance is in them, the interval is without end.

    Args:
        expected: Of the plan.
        plan: As it is now.
        stored: What ran; None where nothing did.
        among: Steps of all expectations that are judged together; by default those of
            this one.
    """
    if stored is None:
        return Judgement(UNKNOWN, 0, 0, 0, 0)
    steps = expected.steps([column.name for column in plan.columns])
    asked = {spot for step in steps for spot in step}
    if has_changed(stored.plan, plan, asked, stored.spots):
        return Judgement(ANOTHER, 0, 0, 0, len(steps))
    gaps = [_difference(stored, expected, step) for step in steps]
    held = _signs(expected, gaps, len(steps)).count(1)
    reversed_ = _signs(expected, gaps, among or len(steps)).count(-1)
    answer = UNKNOWN
    if reversed_:
        answer = "no"
    elif steps and held == len(steps):
        answer = "yes"
    means = _signs(expected, gaps, None).count(1)
    ran = sum(gap is not None for gap in gaps)
    return Judgement(answer, held, means, reversed_, len(steps), ran)


@dataclass(frozen=True)
class _Gap:
    """A difference of two cells and its standard error."""

    value: float
    error: float
    freedom: float = 1.0

    def half(self, level: float) -> float:
        """Return half its interval; infinite where none is known."""
        return float(stdtrit(self.freedom, (1 + level) / 2)) * self.error


def _signs(
    expected: Expectation, gaps: Sequence[_Gap | None], among: int | None
) -> list[int]:
    """Return each step's sign at a level for so many steps; None is of the means alone."""
    if among is None:
        return [_sign(expected, gap, 0.0) for gap in gaps]
    level = 1 - (1 - CONFIDENCE) / max(among, 1)
    return [_sign(expected, gap, gap.half(level) if gap else 0.0) for gap in gaps]


def _sign(expected: Expectation, gap: _Gap | None, half: float) -> int:
    """Return 1 for a step that holds, -1 for the reverse, 0 where neither is known."""
    if gap is None:
        return 0
    low, high = gap.value - half, gap.value + half
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
) -> _Gap | None:
    """Return the upper cell less the lower; None where one of them is missing."""
    where = expected.metric, stored.plan.over
    upper, lower = (stored.cells.get((*place, *where)) for place in step)
    if upper is None or lower is None:
        return None
    times, is_exact = expected.times, expected.metric == MEGABYTES
    shared = upper.by_seed.keys() & lower.by_seed.keys()
    if len(shared) < SEEDS:
        return _Gap(upper.mean - times * lower.mean, math.inf)
    gaps = np.array([upper.by_seed[s] - times * lower.by_seed[s] for s in shared])
    value, spread = float(gaps.mean()), float(gaps.std(ddof=1))
    if spread < HALF_UNIT and not is_exact:
        return _Gap(value, math.inf)
    return _Gap(value, spread / math.sqrt(len(gaps)), len(gaps) - 1.0)
