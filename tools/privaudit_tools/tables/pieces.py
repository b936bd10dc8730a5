"""A piece of a plan: what is trained now, and what was stored of the rest."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from privaudit.core.errors import ConfigError, one_line
from privaudit.core.parameters import first_problem
from privaudit.core.portable_bits import Provenance
from privaudit.core.storage import parse_json, read_bytes
from privaudit_tools.tables.metrics import scale
from privaudit_tools.tables.outcomes import LAST, TableOutcome
from privaudit_tools.tables.plan import Over, TablePlan
from privaudit_tools.tables.same_cells import is_same
from privaudit_tools.tables.schedule import Place, Schedule

Number = FiniteFloat | None
PROVED = "certified_"  # before a view's name, in a stored run


@dataclass(frozen=True)
class Piece:
    """Which runs of a plan are trained.

    Attributes:
        rows: A regular expression, found in the labels of its rows; none is all.
        columns: Likewise, in the full names of its columns.
        seeds: Of the plan's; none is all.
    """

    rows: str = ""
    columns: str = ""
    seeds: tuple[int, ...] = ()

    def holds(self, row: str, column: str, seed: int) -> bool:
        """Say whether a cell, by its label and its full name, is in it with a seed.

        Raises:
            ConfigError: It is no regular expression.
        """
        return bool(
            _compiled("--rows", self.rows).search(row)
            and _compiled("--columns", self.columns).search(column)
            and (not self.seeds or seed in self.seeds)
        )

    def of(self, plan: TablePlan, planned: Schedule) -> Schedule:
        """Return the schedule with this piece's runs alone, and all places.

        Raises:
            ConfigError: It holds no cell, or is no regular expression.
        """
        wanted = {d for place, d in planned.places.items() if self.holds(*place)}
        if not wanted:
            rows = ", ".join(row.label for row in plan.rows)
            columns = ", ".join(column.name for column in plan.columns)
            raise ConfigError(
                f"--rows {self.rows!r} and --columns {self.columns!r} are in no cell of "
                f"the plan. It has the rows {rows} and the columns {columns}."
            )
        runs = tuple(run for run in planned.runs if run.short_hash in wanted)
        return replace(planned, runs=runs)


def _compiled(option: str, expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise ConfigError(
            f"{option} {expression!r} is no regular expression: {error}. A bracket or a "
            "dot that is meant as such has a backslash before it."
        ) from None


class CellRecord(BaseModel):
    """One number of a table over seeds; what its readers do not need is left out."""

    model_config = ConfigDict(frozen=True, strict=True)

    row: str
    column: str
    metric: str
    over: Over
    n: NonNegativeInt
    mean: Number
    sd: Number
    failed: NonNegativeInt
    paper: str | None = None

    @model_validator(mode="after")
    def _has_seeds(self) -> "CellRecord":
        if self.mean is not None and self.n < 1:
            raise ValueError("a mean is of n = 1 or more")
        return self


class RunRecord(BaseModel):
    """One run of a table; its own numbers are whatever else it holds."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")
    __pydantic_extra__: dict[str, Number] = Field(init=False)

    row: str
    column: str
    seed: int
    trainer: str = ""
    digest: str = ""
    run: str
    rounds: NonNegativeInt
    averaged: NonNegativeInt | None = None
    seconds: FiniteFloat
    claimed: Number
    delta: Number
    neighbours: str = ""
    bits: str = ""
    processor: str = ""
    error: str = ""

    @property
    def computed(self) -> Provenance:
        """With what it was trained; nothing in what earlier versions stored."""
        return Provenance(self.bits, self.processor)

    @property
    def averaged_rounds(self) -> int:
        """How many of its last rounds its means over rounds are of."""
        return min(LAST, self.rounds) if self.averaged is None else self.averaged

    @property
    def numbers(self) -> dict[str, float | None]:
        """Its numbers by metric and what they are over, and by view what is proved."""
        return self.__pydantic_extra__


class TableRecords(BaseModel):
    """What a table's JSON holds."""

    model_config = ConfigDict(frozen=True)

    plan: TablePlan
    cells: list[CellRecord]
    runs: list[RunRecord]

    @model_validator(mode="after")
    def _are_planned(self) -> "TableRecords":
        places = {(row.label, column.name) for row, column in self.plan.cells}
        _refuse_twice("run", [(run.row, run.column, run.seed) for run in self.runs])
        cells = [(one.row, one.column, one.metric, one.over) for one in self.cells]
        _refuse_twice("number", cells)
        for one in self.cells:
            if (one.row, one.column) not in places:
                raise ValueError(f"its plan has no cell {one.row!r}, {one.column!r}")
            if one.metric not in self.plan.measured:
                raise ValueError(f"its plan has no metric {one.metric!r}")
            if one.n != (stored := len(self.by_seed(one))):
                raise ValueError(
                    f"{one.metric} of {one.row!r}, {one.column!r} is over {one.n} seeds, "
                    f"and it has runs of {stored}"
                )
        return self

    @property
    def finished(self) -> list[RunRecord]:
        """Return the runs without those that failed."""
        return [run for run in self.runs if not run.error]

    def by_seed(self, cell: CellRecord) -> dict[int, float]:
        """Return each seed's number of a cell."""
        (row,) = (row for row in self.plan.rows if row.label == cell.row)
        name = f"{self.plan.read_as(cell.metric, row)}_{cell.over}"
        return {
            run.seed: value
            for run in self._runs_by_place.get((cell.row, cell.column), ())
            if (value := run.numbers.get(name)) is not None
        }

    @cached_property
    def _runs_by_place(self) -> dict[tuple[str, str], list[RunRecord]]:
        found: dict[tuple[str, str], list[RunRecord]] = {}
        for run in self.finished:
            found.setdefault((run.row, run.column), []).append(run)
        return found


def _refuse_twice(what: str, places: Sequence[tuple[str | int, ...]]) -> None:
    for place, times in Counter(places).most_common(1):
        if times > 1:
            where = ", ".join(map(str, place))
            raise ValueError(f"the {what} of {where} is there {times} times")


def read_records(path: Path) -> TableRecords:
    """Return what a table's JSON holds.

    Raises:
        MissingFileError: There is none.
        ConfigError: It is not what `privaudit table` writes.
    """
    content = parse_json(read_bytes(path), path)
    try:
        return TableRecords.model_validate(content)
    except ValidationError as error:
        place, said = first_problem(
            error.errors(include_url=False, include_input=False)
        )
        where = ".".join(map(str, place))
        reason = one_line(f"{where}: {said}" if where else said)[:200]
        raise ConfigError(
            f"{path} is not what `privaudit table` writes ({reason}). Move it away, or "
            "run the plan again and put its .json there."
        ) from None


def stored_outcomes(path: Path, plan: TablePlan) -> dict[Place, TableOutcome]:
    """Return the runs that a table's JSON holds, failed ones too, each with its digest.

    Those of cells that the plan trains or measures otherwise now are left out; without
    the file, there is none.

    Raises:
        ConfigError: It is not what `privaudit table` writes.
    """
    if not path.is_file():
        return {}
    records = read_records(path)
    old = records.plan.model_copy(update={"seeds": plan.seeds})
    return {
        (run.row, run.column, run.seed): _outcome(plan, run)
        for run in records.runs
        if is_same(old, plan, (run.row, run.column))
    }


def beside_stored(
    planned: Schedule, stored: Mapping[Place, TableOutcome]
) -> tuple[Schedule, dict[str, TableOutcome]]:
    """Return a piece's schedule with the places of what is stored, and that by digest.

    A stored digest stays, though today's is another: data that were moved or deleted
    since change it, and not what was found.
    """
    trained = {run.short_hash for run in planned.runs}
    places, outcomes = dict(planned.places), dict[str, TableOutcome]()
    for place, outcome in stored.items():
        if (today := places.get(place)) is None or today in trained:
            continue
        # The first tables had no digests.
        key = outcome.short_hash or today or ", ".join(map(str, place))
        places[place] = key
        outcomes[key] = outcome
    return replace(planned, places=places), outcomes


def as_expected(stored: TablePlan, plan: TablePlan) -> TablePlan:
    """Return a plan without what was first expected after a part of its cells ran.

    One of which nothing is left has no looks: there is nothing that they would decide.
    """
    before = [one.compared for one in stored.expects]
    expects = tuple(one for one in plan.expects if one.compared in before)
    looks = plan.looks if expects else ()
    return plan.model_copy(update={"expects": expects, "looks": looks})


def _outcome(plan: TablePlan, run: RunRecord) -> TableOutcome:
    values = {
        metric: {
            over: None if value is None else value / scale(metric)
            for over in get_args(Over)
            for value in (run.numbers.get(f"{metric}_{over}"),)
        }
        for metric in plan.wanted
    }
    proved = {
        name.removeprefix(PROVED): value
        for name, value in run.numbers.items()
        if name.startswith(PROVED)
    }
    return TableOutcome(
        run.digest,
        run.run,
        run.rounds,
        run.averaged_rounds,
        run.seconds,
        values,
        run.claimed,
        run.delta,
        proved,
        run.neighbours,
        run.computed,
        run.error,
    )
