"""Results of a sweep: its runs, its cells, which are dominated, and what it cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from privaudit.core.parameters import to_plain
from privaudit.core.provenance import counted
from privaudit.evaluation.tradeoff.cells import SweepCell, SweepPoint, aggregate
from privaudit.evaluation.tradeoff.plan import SweepPlan
from privaudit.evaluation.tradeoff.selection_cost import SearchCost, describe
from privaudit.statistics.dominance import Domination, Front, Margins, find_front

ENOUGH = 5  # seeds to report on


@dataclass(frozen=True)
class Tradeoff:
    """A finished sweep.

    Attributes:
        points: Of all runs with which cells are chosen.
        cells: Means over seeds, with Student's intervals.
        front: Which cells are dominated; positions are those of ``cells``.
        cost: What the search spent; None where that is not known.
        report_points: Of the runs on other seeds; empty without report seeds.
        reported: The cells that nothing dominates, on those other seeds.
    """

    points: tuple[SweepPoint, ...]
    cells: tuple[SweepCell, ...]
    front: Front
    cost: SearchCost | None = None
    report_points: tuple[SweepPoint, ...] = ()
    reported: tuple[SweepCell, ...] = ()

    @property
    def not_dominated(self) -> tuple[SweepCell, ...]:
        """The cells that no other dominates, by test: at least one."""
        return tuple(self.cells[place] for place in self.front.not_dominated)

    def standing(self, place: int) -> str:
        """Say where the cell at a position in ``cells`` stands."""
        dominations = self.front.dominating(place)
        if dominations:
            return f"dominated by {self.cells[dominations[0].better].name}"
        level = f"not dominated by any, at level {100 * self.front.alpha:g} %"
        undecided = self.front.undecided[place]
        return f"{level}; undecided against {undecided}" if undecided else level

    def remarks(self) -> list[str]:
        """Say how cells were compared, and what the search cost."""
        count, front = len(self.cells), self.front
        said = [
            "A cell is dominated if another leaks less, or is more use, by more than "
            f"the margin (AUROC {front.margins.leak:g}, utility {front.margins.use:g}) "
            "and is not worse by more than the margin in the other: paired by seed, "
            "Student's t, Holm over all "
            f"{front.tests} pairs and ways, so that any cell is wrongly called "
            f"dominated in at most {100 * front.alpha:g} % of sweeps. Not dominated is "
            "no proof of being best: undecided counts the cells that might yet be "
            "better.",
            *(self._sentence(place) for place in range(count)),
        ]
        if count > 1:
            said.append(self._on_choosing())
        runs = [*self.points, *self.report_points]
        said.append(f"Computed in {counted(point.computed for point in runs)}.")
        return [*(one for one in said if one), *self._on_cost()]

    def _on_cost(self) -> list[str]:
        if self.cost is None or all(cell.epsilon is None for cell in self.cells):
            return []
        if self.cost.one_seed is None:
            return [
                "No run has a proved ε for this adversary, so there is none for the "
                "search either."
            ]
        return describe(self.cost)

    def _sentence(self, place: int) -> str:
        dominations = self.front.dominating(place)
        if not dominations:
            return ""
        best = dominations[0]
        return (
            f"{self.cells[place].name} is dominated by {self.cells[best.better].name} "
            f"(p = {best.p_value:.2g} after Holm): its leak is greater by {best.leak}, "
            f"its use less by {best.use}."
        )

    def _on_choosing(self) -> str:
        seeds, count = _named(self.points), len(self.cells)
        if not self.reported:
            return (
                f"All {count} cells were looked at on seeds {seeds}. To pick one of "
                f"{count} by what it leaks there is selection: its numbers are the "
                f"best of {count}, and too good on average. Report it on other seeds "
                "(--report-seeds)."
            )
        fresh = len({point.seed for point in self.report_points})
        few = (
            "" if fresh >= ENOUGH else f" That is fewer than {ENOUGH} seeds: add more."
        )
        return (
            f"Chosen on seeds {seeds} among {count} cells, reported on seeds "
            f"{_named(self.report_points)}, which had no part in the choice: quote "
            f"these.{few}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores, as JSON knows it."""
        return {
            "cells": [
                to_plain(SweepCell, cell)
                | {
                    "dominated": place not in self.front.not_dominated,
                    "undecided": self.front.undecided[place],
                    "standing": self.standing(place),
                }
                for place, cell in enumerate(self.cells)
            ],
            "dominations": to_plain(tuple[Domination, ...], self.front.dominations),
            "margins": vars(self.front.margins),
            "alpha": self.front.alpha,
            "reported": to_plain(tuple[SweepCell, ...], self.reported),
            "cost": self.cost and asdict(self.cost),
            "points": to_plain(tuple[SweepPoint, ...], self.points),
            "report_points": to_plain(tuple[SweepPoint, ...], self.report_points),
        }


def judge_sweep(
    points: Sequence[SweepPoint],
    plan: SweepPlan | None = None,
) -> Tradeoff:
    """Return what runs say together, by the margins and the alpha of a plan.

    Raises:
        ConfigError: There is no point, or a seed occurs twice in a cell.
    """
    plan = plan or SweepPlan()
    cells = aggregate(points, against_first=plan.against_first)
    margins = Margins(plan.margin, plan.utility_margin)
    front = find_front(
        [replicates_of(cell, points) for cell in cells], margins, plan.alpha
    )
    return Tradeoff(tuple(points), tuple(cells), front)


def replicates_of(
    cell: SweepCell, points: Sequence[SweepPoint]
) -> dict[int, tuple[float, float]]:
    """Return AUROC and utility of a cell's runs by seed."""
    return {
        point.seed: (point.auroc.value, point.local.value)
        for point in points
        if (point.mode, point.epsilon) == (cell.mode, cell.epsilon)
    }


def _named(points: Sequence[SweepPoint]) -> str:
    return ", ".join(str(seed) for seed in dict.fromkeys(p.seed for p in points))
