"""A table's numbers as `privaudit table` wrote them, and whether they show a paper's."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from privaudit.core.errors import ConfigError, one_line
from privaudit.core.portable_bits import Provenance
from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.metrics import MEGABYTES, Metric
from privaudit_tools.tables.paper import PaperNumber
from privaudit_tools.tables.parts import Column, TableRow
from privaudit_tools.tables.pieces import CellRecord, read_records
from privaudit_tools.tables.plan import FEWEST, Over, TablePlan
from privaudit_tools.tables.same_cells import has_changed
from privaudit_tools.tables.table import CellSummary, reduced

Place = tuple[str, str, str, str]  # row, column, metric, over
Answer = Literal[
    "agrees", "disagrees", "absent", "open",
    "not admitted", "another plan ran", "nothing declared", "not run",
]  # fmt: skip
FOUR: tuple[Answer, ...] = ("agrees", "disagrees", "absent", "open")
CONFIDENCE = 0.95  # of all that is compared in a row together
SMALL = 1.0  # points; less is no effect, unless the paper's own is less than twice that
MOST_SEEDS = 1000
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
        cells: Those with a number, and without a failed run.
        failed: Seeds whose runs failed, by row and column.
        rounds: For how many rounds its runs were trained.
        averaged: How many of their last rounds means over rounds are of, at most.
        computed: With what they were trained, one for each.
    """

    plan: TablePlan
    cells: Mapping[Place, StoredCell]
    failed: Mapping[tuple[str, str], Set[int]] = field(default_factory=dict)
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
        if seeds := self.failed.get((row.label, column.name)):
            paper = self.plan.printed(metric, row.label, column.name)
            return CellSummary.of([], len(seeds), paper)
        found = self.cells.get((row.label, column.name, metric, over))
        return found.summary if found else None

    @property
    def shown(self) -> "StoredTable":
        """The table without rows, columns and seeds of which nothing is stored."""
        seeds = {seed for cell in self.cells.values() for seed in cell.by_seed}
        seeds = seeds.union(*self.failed.values())
        spots = self.spots | self.failed.keys()
        plan = reduced(self.plan, spots, seeds or self.plan.seeds)
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
    """What stored numbers answer to an expectation.

    Attributes:
        answer: One of the four; or that another plan ran.
        contrast: Mean difference over all its steps and seeds; None without numbers.
        half: Half of its interval, together with the row's other expectations.
        small: Below which size an effect is called absent; 0 where that is no question.
        needed: About how many seeds decide what is open; None where that is unknown.
        steps: How many pairs of cells it compares.
        ran: Pairs both of whose cells were run.
        by_means: Pairs that hold in the means.
        reversed: Pairs that are significantly the other way round, or exactly equal.
    """

    answer: Answer
    contrast: float | None = None
    half: float = math.inf
    small: float = 0.0
    needed: int | None = None
    steps: int = 0
    ran: int = 0
    by_means: int = 0
    reversed: int = 0


def read_stored(path: Path) -> StoredTable:
    """Return a stored table.

    Raises:
        MissingFileError: There is none.
        ConfigError: It is not what `privaudit table` writes.
    """
    records = read_records(path)
    try:
        plan = records.plan.model_copy(update={"paper": _paper(records.cells)})
    except ValueError as error:  # of the paper's numbers
        raise ConfigError(
            f"{path} is not what `privaudit table` writes ({one_line(str(error))[:200]})."
            " Run the plan again, and put its .json there."
        ) from None
    failed: dict[tuple[str, str], set[int]] = {}
    for run in records.runs:
        if run.error:
            failed.setdefault((run.row, run.column), set()).add(run.seed)
    found: dict[Place, StoredCell] = {
        (c.row, c.column, c.metric, c.over):
        StoredCell(records.by_seed(c), plan.printed(c.metric, c.row, c.column))
        for c in records.cells
        if c.mean is not None and not c.failed
    }  # fmt: skip
    return StoredTable(
        plan,
        found,
        failed,
        frozenset(run.rounds for run in records.finished),
        max((run.averaged_rounds for run in records.finished), default=0),
        tuple(run.computed for run in records.finished),
    )


def _paper(cells: Sequence[CellRecord]) -> dict[str, dict[str, Any]]:
    """Return the paper's numbers as a plan has them; JSON has them by cell."""
    paper: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if cell.paper:
            by_row = paper.setdefault(cell.metric, {})
            by_row.setdefault(cell.row, {})[cell.column] = PaperNumber.read(cell.paper)
    return paper


def judge(
    expected: Expectation,
    plan: TablePlan,
    stored: StoredTable,
    among: int = 1,
    steps_among: int | None = None,
) -> Judgement:
    """Hold stored numbers to an expectation, by the mean difference of its pairs.

    Seeds are paired; the interval is Student's, all expectations of a row together at
    95 % (Bonferroni), and all looks of a plan that has some. "agrees": the interval is
    above zero, or within the points that the expectation allows. "disagrees": it is
    below, or outside; or one of the pairs is significantly reversed, all pairs of the
    row together. "absent": it lies within a point, or within half of the paper's own
    contrast where that is less. With fewer than three seeds of both, or where seeds do
    not differ though chance is in them, it is without end; and what lacks a cell stays
    open.

    Args:
        expected: Of the plan.
        plan: As it is now.
        stored: What ran.
        among: Expectations that are judged together.
        steps_among: Pairs of all of these; by default those of this one.
    """
    steps = expected.steps([column.name for column in plan.columns])
    asked = {spot for step in steps for spot in step}
    if has_changed(stored.plan, plan, asked, stored.spots):
        return Judgement("another plan ran", steps=len(steps))
    found = [_differences(stored, expected, step) for step in steps]
    gaps = [gap for gap in found if gap]
    if not gaps or not (by_seed := _mean_by_seed(gaps)):
        return Judgement("open", steps=len(steps), ran=len(gaps))
    is_exact = expected.metric == MEGABYTES
    each = [_Contrast.of(gap, is_exact) for gap in gaps]
    whole = _Contrast.of(by_seed, is_exact)
    small = _small(expected, plan, steps)
    looks = max(len(plan.looks), len(stored.plan.looks), 1)
    level = 1 - (1 - CONFIDENCE) / (looks * max(among, 1))
    step_level = 1 - (1 - CONFIDENCE) / (looks * max(steps_among or len(steps), 1))
    reversed_ = sum(
        _answer(expected, g, step_level, small) == "disagrees" for g in each
    )
    answer = _answer(expected, whole, level, small)
    is_whole = len(gaps) == len(steps)
    if reversed_:
        answer = "disagrees"
    elif not is_whole:
        answer = "open"
    more = is_whole and answer == "open"  # seeds, where these alone are missing
    return Judgement(
        answer,
        whole.value,
        whole.half(level),
        small,
        whole.needed(level, expected.within, small) if more else None,
        len(steps),
        len(gaps),
        sum(_holds(expected, gap.value) for gap in each),
        reversed_,
    )


@dataclass(frozen=True)
class _Contrast:
    """A mean over seeds, with the standard deviation that they show."""

    value: float
    spread: float
    count: int

    @classmethod
    def of(cls, gaps: Mapping[int, float], is_exact: bool) -> "_Contrast":
        values = np.array(list(gaps.values()))
        spread = float(values.std(ddof=1)) if len(values) >= FEWEST else math.inf
        hidden = spread < HALF_UNIT and not is_exact
        return cls(float(values.mean()), math.inf if hidden else spread, len(values))

    def half(self, level: float, count: int | None = None) -> float:
        """Return half its interval, with so many seeds; infinite where it is unknown."""
        count = count or self.count
        if math.isinf(self.spread):
            return math.inf
        quantile = float(stdtrit(count - 1.0, (1 + level) / 2))
        return quantile * self.spread / math.sqrt(count)

    def needed(self, level: float, within: float | None, small: float) -> int | None:
        """Return about how many seeds would decide, were mean and spread to stay."""
        size = abs(self.value)
        apart = abs(size - within) if within is not None else max(size, small - size)
        counts = range(self.count + 1, MOST_SEEDS + 1)
        enough = (n for n in counts if self.half(level, n) < apart)
        return next(enough, None)


def _answer(
    expected: Expectation, gap: _Contrast, level: float, small: float
) -> Answer:
    half = gap.half(level)
    low, high = gap.value - half, gap.value + half
    if expected.within is not None:
        allowed = expected.within
        if -allowed <= low and high <= allowed:
            return "agrees"
        return "disagrees" if low > allowed or high < -allowed else "open"
    if -small < low and high < small:
        return "absent"
    is_equal = low == high == 0  # of exact numbers
    return "agrees" if low > 0 else "disagrees" if high < 0 or is_equal else "open"


def _holds(expected: Expectation, gap: float) -> bool:
    return gap > 0 if expected.within is None else abs(gap) <= expected.within


def _small(
    expected: Expectation,
    plan: TablePlan,
    steps: Sequence[tuple[tuple[str, str], tuple[str, str]]],
) -> float:
    """Return below which size an effect is absent; of shares, bytes and likeness 0."""
    if expected.metric == MEGABYTES or expected.within is not None:
        return 0.0
    if expected.times != 1:
        return 0.0
    printed = [[plan.printed(expected.metric, *spot) for spot in s] for s in steps]
    gaps = [upper.mean - lower.mean for upper, lower in printed if upper and lower]
    theirs = fmean(gaps) if gaps else 0.0
    return min(SMALL, theirs / 2) if theirs > 0 else SMALL


def _differences(
    stored: StoredTable,
    expected: Expectation,
    step: tuple[tuple[str, str], tuple[str, str]],
) -> dict[int, float]:
    """Return the upper cell less the lower by seed; none where one of them is missing."""
    where = expected.metric, stored.plan.over
    upper, lower = (stored.cells.get((*place, *where)) for place in step)
    if upper is None or lower is None:
        return {}
    shared = sorted(upper.by_seed.keys() & lower.by_seed.keys())
    return {s: upper.by_seed[s] - expected.times * lower.by_seed[s] for s in shared}


def _mean_by_seed(gaps: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return each seed's mean over all pairs, of the seeds that all of them have."""
    shared = set(gaps[0]).intersection(*gaps[1:])
    return {s: fmean(gap[s] for gap in gaps) for s in sorted(shared)}
