"""A utility table: all its runs, and what they say together."""

import math
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from privaudit.evaluation.sweep_runs import perform_runs
from privaudit.execution.executors import HERE
from privaudit.execution.jobs import Executor, use_threads
from privaudit.runs.run import runs_folder
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.tables.metrics import Metric, scale
from privaudit_tools.tables.outcomes import TableOutcome, perform
from privaudit_tools.tables.paper import PaperNumber
from privaudit_tools.tables.parts import Column, TableRow
from privaudit_tools.tables.pieces import (
    Piece,
    as_expected,
    beside_stored,
    read_records,
    stored_outcomes,
)
from privaudit_tools.tables.plan import Over, TablePlan
from privaudit_tools.tables.schedule import PlannedRun, Schedule, schedule

Say = Callable[[str], None]


@dataclass(frozen=True)
class CellSummary:
    """One number of a table, over its seeds.

    Attributes:
        mean: As printed, mostly in per cent, with Student's interval; None where no run
            has the number.
        spread: Standard deviation over seeds, n - 1 below; None with fewer than two.
        failed: How many runs of the cell have failed; they are missing in the mean.
        paper: What the paper says.
    """

    mean: Estimate | None
    spread: float | None
    failed: int
    paper: PaperNumber | None

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        failed: int = 0,
        paper: PaperNumber | None = None,
    ) -> "CellSummary":
        """Return what seeds say together."""
        return cls(
            mean_with_t(values) if values else None,
            float(np.std(values, ddof=1)) if len(values) > 1 else None,
            failed,
            paper,
        )

    @property
    def is_whole(self) -> bool:
        """Whether there is a number, and no run of it has failed."""
        return self.mean is not None and not self.failed


@dataclass(frozen=True)
class UtilityTable:
    """A plan and what came of it."""

    plan: TablePlan
    schedule: Schedule
    outcomes: Mapping[str, TableOutcome]

    def outcomes_of(self, row: str, column: str) -> list[TableOutcome]:
        """Return a cell's outcomes in the order of the seeds; none for no cell."""
        places = [(row, column, seed) for seed in self.plan.seeds]
        digests = [self.schedule.places.get(place, "") for place in places]
        return [self.outcomes[digest] for digest in digests if digest in self.outcomes]

    @property
    def shown(self) -> "UtilityTable":
        """The table without rows, columns and seeds of which nothing was run."""
        ran = [
            place
            for place, digest in self.schedule.places.items()
            if digest in self.outcomes
        ]
        seeds = {seed for _, _, seed in ran}
        spots = {(row, column) for row, column, _ in ran}
        return replace(self, plan=reduced(self.plan, spots, seeds))

    def cell(
        self, row: TableRow, column: Column, metric: Metric, over: Over
    ) -> CellSummary | None:
        """Return what a cell says; None where the plan has no cell."""
        outcomes = self.outcomes_of(row.label, column.name)
        if not outcomes:
            return None
        name, unit = self.plan.read_as(metric, row), scale(metric)
        raw_values = [outcome.value(name, over) for outcome in outcomes]
        values = [unit * value for value in raw_values if value is not None]
        return CellSummary.of(
            values,
            sum(bool(outcome.error) for outcome in outcomes),
            self.plan.printed(metric, row.label, column.name),
        )

    @property
    def failures(self) -> list[tuple[str, TableOutcome]]:
        """Return the runs that failed, stored ones too, each once, with its label."""
        found: dict[str, tuple[str, TableOutcome]] = {}
        for (row, column, seed), digest in self.schedule.places.items():
            if (outcome := self.outcomes.get(digest)) and outcome.error:
                found.setdefault(digest, (f"{row}, {column}, seed {seed}", outcome))
        return list(found.values())

    @property
    def rounds(self) -> set[int]:
        """How many rounds the runs were trained for."""
        return {outcome.rounds for outcome in self.outcomes.values() if outcome.rounds}

    @property
    def averaged(self) -> int:
        """How many of their last rounds the means are over, at most."""
        return max((outcome.averaged for outcome in self.outcomes.values()), default=0)


def reduced(
    plan: TablePlan, spots: Collection[tuple[str, str]], seeds: Collection[int]
) -> TablePlan:
    """Return a plan with those rows, columns and seeds alone.

    Args:
        plan: Of the whole table.
        spots: Row labels and column names of cells that stay.
        seeds: Those that stay.
    """
    rows, columns = {row for row, _ in spots}, {column for _, column in spots}
    return plan.model_copy(
        update={
            "rows": tuple(row for row in plan.rows if row.label in rows),
            "columns": tuple(c for c in plan.columns if c.name in columns),
            "seeds": tuple(seed for seed in plan.seeds if seed in seeds),
        }
    )


def make_table(
    plan: TablePlan,
    *,
    folder: Path | None = None,
    executor: Executor = HERE,
    progress: Say | None = None,
    piece: Piece | None = None,
    stored: Path | None = None,
) -> UtilityTable:
    """Train every cell of a plan with every seed, or a piece of it.

    Runs that are finished are taken as they are, and those that were stopped go on
    where they stopped: so does a table.

    Args:
        plan: What to train.
        folder: Where runs are kept.
        executor: Where runs are trained, each on one thread; by default in this process.
        progress: Called with a line after each run.
        piece: What is trained; by default all.
        stored: The JSON of an earlier table, from which the rest is taken beside a
            piece.

    Raises:
        ConfigError: A run cannot be configured, the piece holds none, or what is stored
            is no table; nothing has run.
        MissingFileError: Data or a model is not there; nothing has run.
    """
    planned = schedule(plan, (piece or Piece()).holds)
    kept, outcomes = dict[str, TableOutcome](), dict[str, TableOutcome]()
    if piece:
        found = stored_outcomes(stored, plan) if stored else {}
        planned, kept = beside_stored(piece.of(plan, planned), found)
    if stored and kept:
        plan = as_expected(read_records(stored).plan, plan)
    with (
        use_threads(1),
        closing(_outcomes(plan, planned, folder, executor)) as finished,
    ):
        for run, outcome in finished:
            outcomes[run.short_hash] = outcome
            if progress:
                count = f"{len(outcomes)}/{len(planned.runs)}"
                progress(f"{count} {run.label}: {_in_words(plan, outcome)}")
    return UtilityTable(plan, planned, {**kept, **outcomes})


def _outcomes(
    plan: TablePlan, planned: Schedule, folder: Path | None, executor: Executor
) -> Generator[tuple[PlannedRun, TableOutcome]]:
    """Yield each run with its outcome, as it finishes."""
    runs = {run.label: run for run in planned.runs}
    finished = perform_runs(
        perform,
        [(run, ()) for run in planned.runs],
        runs_folder(folder),
        executor,
        "table",
        plan.model_dump(mode="json", exclude={"paper", "reproduces", "expects"}),
        failure=lambda outcome: outcome.error,
    )
    with closing(finished):
        for one in finished:
            run = runs[one.job.name]
            if one.error is None:
                yield run, one.value
            else:
                yield run, TableOutcome(run.short_hash, error=str(one.error))


def _in_words(plan: TablePlan, outcome: TableOutcome) -> str:
    if outcome.error:
        return f"failed: {outcome.error}\n{outcome.trace}".rstrip()
    values = {metric: outcome.value(metric, plan.over) for metric in plan.wanted}
    numbers = [
        f"{metric} {scale(metric) * value:.2f}"
        for metric, value in values.items()
        if value is not None
    ]
    return f"{', '.join(numbers) or 'nothing measured'} ({outcome.seconds:.0f} s)"


def agreeing_pairs(
    table: UtilityTable, column: Column, metric: Metric
) -> tuple[int, int]:
    """Return how many pairs of rows a column orders as the paper does, and of how many.

    In the means alone, whatever their spread. Pairs that the paper has as equal, or that
    lack a number on either side, do not count; pairs that are equal here do not agree.
    """
    cells = [
        table.cell(row, column, metric, table.plan.over) for row in table.plan.rows
    ]
    known = [
        (cell.mean.value, cell.paper.mean)
        for cell in cells
        if cell and cell.is_whole and cell.mean and cell.paper
    ]
    signs = [
        math.copysign(1, paper - earlier_paper) * (mean - earlier)
        for index, (mean, paper) in enumerate(known)
        for earlier, earlier_paper in known[:index]
        if paper != earlier_paper
    ]
    return sum(sign > 0 for sign in signs), len(signs)
