"""Whether a backbone can show what a paper's does, before a table is spent on it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from privaudit.core.errors import ConfigError
from privaudit.core.limits import read_toml
from privaudit.statistics.estimate import mean_with_t
from privaudit_tools.tables.backbones import backbones
from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.metrics import ACCURACIES, CAPTIONS, MEGABYTES, attack_of
from privaudit_tools.tables.parts import Column, TablePart, TableRow, Text
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import settings_of
from privaudit_tools.tables.stored import StoredTable, read_stored

ADMISSION = "results/admission.toml"
UNTRAINED = "zero-shot"  # a trainer
CHANCE = 50.0  # an AUROC, in per cent
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
        paper's gain over an untrained model, or anything where the paper has no
        numbers. Where leaks are compared, the strongest attack of the plan is above
        chance on them. Bytes are arithmetic.
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
            start = self._untrained(metric, stored, backbone)
            place = metric, plan.over
            ours = [
                stored.cells[row.label, column.name, *place].mean
                for row, column in cells
                if (row.label, column.name, *place) in stored.cells
            ]
            if start is None or not ours:
                continue
            printed = (plan.printed(metric, r.label, c.name) for r, c in cells)
            theirs = [one.mean for one in printed if one]
            zero = _published(metric, plan) or (backbone and backbone.published)
            asked = max(_mean(theirs) - zero, 0.0) / 2 if theirs and zero else 0.0
            probe = backbone.probe if backbone and metric in ACCURACIES else None
            left = None if probe is None else probe - start
            return _Gain(_mean(ours) - start, asked, left)
        return None

    def _untrained(
        self, metric: str, stored: StoredTable, backbone: Backbone | None
    ) -> float | None:
        rows = [r.label for r in stored.plan.rows if r.trainer == UNTRAINED]
        if not rows and backbone:
            stored = read_stored(self.folder / "results" / f"{backbone.table}.json")
            rows = [backbone.row]
        found = [
            cell.mean
            for (row, _, name, over), cell in stored.cells.items()
            if row in rows and name == metric and over == stored.plan.over
        ]
        return _mean(found) if found else None


def _published(metric: str, plan: TablePlan) -> float | None:
    """Return the paper's own number of an untrained row."""
    rows = {row.label: row.trainer == UNTRAINED for row in plan.rows}
    printed = (
        plan.printed(metric, row.label, column.name)
        for row, column in plan.cells
        if rows[row.label]
    )
    return next((one.mean for one in printed if one), None)


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
    """Return that the strongest attack finds nothing without noise, if it is so."""
    attacks = [m for m in stored.plan.measured if attack_of(m) is not None]
    found = []
    for metric in attacks:
        places = [(r.label, c.name, metric, stored.plan.over) for r, c in cells]
        there = [
            stored.cells[place].by_seed for place in places if place in stored.cells
        ]
        shared = set[int]().union(*there).intersection(*there)
        if shared:
            by_seed = [_mean([one[seed] for one in there]) for seed in sorted(shared)]
            found.append((mean_with_t(by_seed), metric))
    if not found:
        return ""
    best, metric = max(found, key=lambda one: one[0].value)
    if best.low > CHANCE:
        return ""
    return f"{metric}, the strongest attack, has {best.value:.1f} without noise"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
