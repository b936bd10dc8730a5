"""Where each row stands on evaluation seeds, and which rows are told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from privaudit.core.errors import ConfigError
from privaudit.statistics.comparisons import holm
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.equal_utility.choosing import CHANCE, Choice, Choices
from privaudit_tools.equal_utility.curve import (
    FEWEST,
    Measured,
    Standing,
    p_of_zero,
    standing,
)
from privaudit_tools.equal_utility.outcomes import RunRecord
from privaudit_tools.equal_utility.plan import UNTRAINED, BenchmarkPlan, Method

ALPHA = 0.05  # the chance of any false separation, and of any false use


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        runs: Its finished runs on evaluation seeds, of its chosen setting.
        utility: On the classes that the plan says.
        others: Utility on the classes of other clients; None if every client owns all.
        standing: None without training, and with fewer than three seeds; its p_useful
            is Holm's over all rows.
        p: Holm's, that it is on the curve; None where it is not tested: of no use.
    """

    method: Method
    choice: Choice
    runs: tuple[RunRecord, ...]
    utility: Estimate
    others: Estimate | None
    leak: Estimate
    standing: Standing | None = None
    p: float | None = None

    @property
    def is_tested(self) -> bool:
        """Whether it is worth more than no training, so that a distance means something."""
        found = self.standing
        return found is not None and found.where != "below" and found.p_useful < ALPHA


@dataclass(frozen=True)
class Knot:
    """A point of the curve."""

    label: str
    utility: Estimate
    leak: Estimate


@dataclass(frozen=True)
class Judged:
    """What a benchmark found.

    Attributes:
        rows: The farthest below the curve first; untested ones behind, then no training.
        knots: In the order of their utility.
        separated: Pairs of tested rows, by label, that Holm's tests tell apart.
        measured: The knots' numbers by seed, no training first.
    """

    rows: tuple[Row, ...]
    knots: tuple[Knot, ...]
    separated: frozenset[frozenset[str]]
    measured: tuple[Measured, ...]


def judge(plan: BenchmarkPlan, choices: Choices, runs: Sequence[RunRecord]) -> Judged:
    """Return where each row stands, of its runs on evaluation seeds.

    Raises:
        ConfigError: The curve has fewer than three seeds.
    """
    seeds = plan.evaluation_seeds
    stops = [choice.measured(runs, seeds, plan.utility) for choice in choices.stops]
    chosen = {choice.row: choice for choice in choices.rows}
    start = chosen[plan.untrained.label].measured(runs, seeds, plan.utility)
    # A coin chose the members, and nothing was trained on them.
    untrained = Measured(start.utility, dict.fromkeys(start.utility, CHANCE))
    _require_curve(seeds, [untrained, *stops])
    rows = [
        _row(plan, method, chosen[method.label], runs, untrained, stops)
        for method in plan.methods
        if method.label in chosen and chosen[method.label].of(runs, seeds)
    ]
    rows = _useful_by_holm(rows)
    tested = [row for row in rows if row.is_tested]
    adjusted = holm([row.standing.p for row in tested if row.standing])
    p_of = dict(zip([row.method.label for row in tested], adjusted, strict=True))
    rows = [replace(row, p=p_of.get(row.method.label)) for row in rows]
    labels = [f"after {choice.rounds} rounds" for choice in choices.stops]
    return Judged(
        tuple(sorted(rows, key=_place)),
        tuple(_knots(["no training", *labels], [untrained, *stops])),
        _separated(tested),
        (untrained, *stops),
    )


def _useful_by_holm(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their p-values of being worth more than no training, Holm's."""
    adjusted = iter(holm([row.standing.p_useful for row in rows if row.standing]))
    return [
        replace(row, standing=replace(row.standing, p_useful=float(next(adjusted))))
        if row.standing
        else row
        for row in rows
    ]


def _require_curve(seeds: Sequence[int], knots: Sequence[Measured]) -> None:
    shared = set(seeds).intersection(*(knot.utility for knot in knots))
    if len(shared) < FEWEST:
        raise ConfigError(
            f"The curve takes {FEWEST} evaluation seeds with all of its knots, and there "
            f"are {len(shared)}. Mend the runs that failed, and run the plan again."
        )


def _row(
    plan: BenchmarkPlan,
    method: Method,
    choice: Choice,
    runs: Sequence[RunRecord],
    untrained: Measured,
    stops: Sequence[Measured],
) -> Row:
    mine = choice.of(runs, plan.evaluation_seeds)
    found = choice.measured(mine, plan.evaluation_seeds, plan.utility)
    last = [run.at(0).utility for run in mine]
    others = [one["neighbour"] for one in last if "neighbour" in one]
    is_scored = method.trainer != UNTRAINED and len(mine) >= FEWEST
    return Row(
        method,
        choice,
        tuple(mine),
        mean_with_t(list(found.utility.values())),
        mean_with_t(others) if len(others) == len(mine) else None,
        mean_with_t(list(found.leak.values())),
        standing(found, untrained, stops) if is_scored else None,
    )


def _place(row: Row) -> tuple[bool, bool, float]:
    where = row.standing.distance.value if row.standing else 0.0
    return not row.is_tested, row.standing is None, -where


def _knots(labels: Sequence[str], knots: Sequence[Measured]) -> list[Knot]:
    found = [
        Knot(
            label,
            mean_with_t(list(knot.utility.values())),
            mean_with_t(list(knot.leak.values())),
        )
        for label, knot in zip(labels, knots, strict=True)
    ]
    return sorted(found, key=lambda knot: knot.utility.value)


def _separated(rows: Sequence[Row]) -> frozenset[frozenset[str]]:
    """Return pairs of rows whose paired contrasts Holm tells apart."""
    by_label = {row.method.label: row.standing.by_seed for row in rows if row.standing}
    pairs = list(combinations(by_label, 2))
    adjusted = holm([_p(by_label[one], by_label[two]) for one, two in pairs])
    return frozenset(
        frozenset(pair) for pair, p in zip(pairs, adjusted, strict=True) if p < ALPHA
    )


def _p(one: Mapping[int, float], two: Mapping[int, float]) -> float:
    shared = sorted(set(one) & set(two))
    if len(shared) < FEWEST:
        return 1.0
    return p_of_zero(np.array([one[seed] - two[seed] for seed in shared]))
