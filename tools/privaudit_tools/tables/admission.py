"""Whether a backbone can show what a paper's does, before a table is spent on it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from privaudit.core.errors import ConfigError
from privaudit.core.limits import read_toml
from privaudit.statistics.estimate import mean_with_t
from privaudit_tools.tables.backbones import backbones
from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.metrics import (
    ACCURACIES,
    CAPTIONS,
    MEGABYTES,
    attack_of,
    chance,
)
from privaudit_tools.tables.parts import Column, TablePart, TableRow, Text
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import settings_of
from privaudit_tools.tables.stored import StoredTable, read_stored

ADMISSION = "results/admission.toml"
UNTRAINED = "zero-shot"  # a trainer
_UTILITIES = ("mix", "local", "all", *CAPTIONS)
Cell = tuple[TableRow, Column]


class Backbone(TablePart):
    """A frozen model on a data set, as a page calls them, and where it starts from.

    Attributes:
        name: As "ran on" has it.
        table: A stored table with a row that is not trained, for plans without one.
        row: The label of that untrained row.
        published: Zero-shot accuracy of the paper's, where its table has none.
        probe: Accuracy of a linear probe on its features, in per cent.
        source: Of the last two.
    """

    name: Text
    table: Text
    row: Text
    published: float | None = None
    probe: float | None = None
    source: str = ""


class _Backbones(TablePart):
    backbones: tuple[Backbone, ...] = ()


@dataclass(frozen=True)
class _Gain:
    """Points over an untrained model: of trained rows, those asked, a probe's."""

    ours: float
    asked: float
    probe: float | None

    def __str__(self) -> str:
        left = "" if self.probe is None else f"; a linear probe {self.probe:.1f}"
        return f"trained rows gain {self.ours:.1f} points, {self.asked:.1f} asked{left}"


@dataclass(frozen=True)
class Admission:
    """What decides whether an expectation can be held to a backbone's numbers.

    Attributes:
        folder: With plans, and results/ in it.
        known: Backbones by the name that "ran on" has.
    """

    folder: Path
    known: Mapping[str, Backbone]

    @classmethod
    def read(cls, folder: Path) -> "Admission":
        """Return what a folder of plans says of backbones; nothing without the file.

        Raises:
            ConfigError: The file lists no backbones.
        """
        path = folder / ADMISSION
        try:
            listed = _Backbones.model_validate(read_toml(path) if path.exists() else {})
        except ValidationError as error:
            raise ConfigError(
                f"{path} lists no backbones: {error.errors()[0]['msg']}."
            ) from None
        return cls(folder, {one.name: one for one in listed.backbones})

    def refusal(
        self, expected: Expectation, plan: TablePlan, stored: StoredTable
    ) -> str:
        """Return why numbers cannot show what an expectation says; empty if they can.

        Rows without noise, of those that it compares, gain on average half of what the
        paper's gain over an untrained model of the same column, or anything where the
        paper has no numbers. Where leaks are compared, the strongest attack of the
        plan is above chance on them. Bytes are arithmetic.
        """
        cells = list(_noiseless(expected, plan))
        if expected.metric == MEGABYTES or not cells:
            return ""
        backbone = self.known.get(backbones(stored.plan))
        gain = self._gain(cells, plan, stored, backbone)
        if gain and gain.ours < gain.asked:
            return str(gain)
        if attack_of(expected.metric) is not None:
            return _unseen(cells, stored)
        return ""

    def _gain(
        self,
        cells: Sequence[Cell],
        plan: TablePlan,
        stored: StoredTable,
        backbone: Backbone | None,
    ) -> "_Gain | None":
        """Return what trained rows gain in the plan's first measure of utility."""
        for metric in (m for m in _UTILITIES if m in plan.measured):
            starts = self._untrained(metric, stored, backbone)
            place = metric, plan.over
            ours = {
                (row.label, column.name): cell.mean
                for row, column in cells
                if (cell := stored.cells.get((row.label, column.name, *place)))
            }
            if not starts or not ours:
                continue
            start = _mean_at(ours, starts)
            printed = {spot: plan.printed(metric, *spot) for spot in ours}
            theirs = {spot: one.mean for spot, one in printed.items() if one}
            zero = _published(metric, plan, backbone)
            paired = theirs and zero
            more = fmean(theirs.values()) - _mean_at(theirs, zero) if paired else 0.0
            probe = backbone.probe if backbone and metric in ACCURACIES else None
            left = None if probe is None else probe - start
            return _Gain(fmean(ours.values()) - start, max(more, 0.0) / 2, left)
        return None

    def _untrained(
        self, metric: str, stored: StoredTable, backbone: Backbone | None
    ) -> dict[str, float]:
        """Return what untrained rows have, by column."""
        rows = [r.label for r in stored.plan.rows if r.trainer == UNTRAINED]
        if not rows and backbone:
            stored = read_stored(self.folder / "results" / f"{backbone.table}.json")
            rows = [backbone.row]
        return _by_column(
            (column, cell.mean)
            for (row, column, name, over), cell in stored.cells.items()
            if row in rows and name == metric and over == stored.plan.over
        )


def _published(
    metric: str, plan: TablePlan, backbone: Backbone | None
) -> dict[str, float]:
    """Return the paper's numbers of untrained rows by column, or what stands for all."""
    own = _by_column(
        (column.name, printed.mean)
        for row, column in plan.cells
        if row.trainer == UNTRAINED
        and (printed := plan.printed(metric, row.label, column.name))
    )
    if own or backbone is None or backbone.published is None:
        return own
    return {"": backbone.published}


def _by_column(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean of each column's numbers."""
    numbers: dict[str, list[float]] = {}
    for column, number in found:
        numbers.setdefault(column, []).append(number)
    return {column: fmean(those) for column, those in numbers.items()}


def _mean_at(
    spots: Collection[tuple[str, str]], by_column: Mapping[str, float]
) -> float:
    """Return the mean at cells of what is known by column, elsewhere that of all."""
    usual = fmean(by_column.values())
    return fmean(by_column.get(column, usual) for _, column in spots)


def _noiseless(expected: Expectation, plan: TablePlan) -> Iterator[Cell]:
    """Yield the trained cells without noise of what an expectation compares, once."""
    names = [column.name for column in plan.columns]
    spots = {spot for step in expected.steps(names) for spot in step}
    asked = [
        (row.label, _but_epsilon(plan, row, column))
        for row, column in plan.cells
        if (row.label, column.name) in spots and row.trainer != UNTRAINED
    ]
    for row, column in plan.cells:
        quiet = settings_of(plan, row, column).get("epsilon") is None
        if quiet and (row.label, _but_epsilon(plan, row, column)) in asked:
            yield row, column


def _but_epsilon(plan: TablePlan, row: TableRow, column: Column) -> dict[str, Any]:
    settings = settings_of(plan, row, column)
    return {**plan.fields_of(row, column), **settings, "epsilon": None}


def _unseen(cells: Sequence[Cell], stored: StoredTable) -> str:
    """Return that the strongest attack finds nothing without noise, if it is so.

    The strongest is the furthest from chance by its seeds' mean square, not by their
    mean: chosen by sums of squares, Student's interval of normal seeds stays exact
    among however many attacks.

    Source: Läuter, Glimm & Kropf, "Multivariate tests based on left-spherically
    distributed linear scores", Annals of Statistics 1998.
    """
    found: list[tuple[float, str, list[float], float]] = []
    for metric in stored.plan.measured:
        places = [(r.label, c.name, metric, stored.plan.over) for r, c in cells]
        there = [
            stored.cells[place].by_seed for place in places if place in stored.cells
        ]
        shared = sorted(set[int]().union(*there).intersection(*there))
        if shared and (floor := chance(metric)) is not None:
            by_seed = [fmean(one[seed] for one in there) for seed in shared]
            far = fmean((value - floor) ** 2 for value in by_seed)
            found.append((far, metric, by_seed, floor))
    if not found:
        return ""
    _, metric, by_seed, floor = max(found)
    best = mean_with_t(by_seed)
    if best.low > floor:
        return ""
    return f"{metric}, the strongest attack, has {best.value:.1f} without noise"
