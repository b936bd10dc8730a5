"""At most three sentences that a practitioner may act on, each from a test that holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privaudit.statistics.comparisons import holm
from privaudit.statistics.estimate import Estimate, mean_with_t
from privaudit_tools.equal_utility.benchmark import BenchmarkResult
from privaudit_tools.equal_utility.curve import (
    FEWEST,
    Measured,
    Seeds,
    at_least,
    p_above_zero,
    p_of_zero,
)
from privaudit_tools.equal_utility.judging import ALPHA, Judged, Row
from privaudit_tools.equal_utility.plan import BenchmarkPlan

MOST = 3
WORTH = 0.02  # of utility: what a practitioner may give up, or would not miss


def advice(result: BenchmarkResult, judged: Judged) -> list[str]:
    """Return the sentences that the numbers support, the most useful first.

    A method that leaks less than early stopping at equal utility, whether sums alone do, a
    method with a proof that is of use, where to stop the training, what proofs cost, and a
    method to avoid: each is said only if its test holds at 5 %, after Holm's correction
    over its like.
    """
    plan = result.plan
    curve, measure = plan.reference.label, plan.measured
    gains = _gains(judged, plan.utility)
    found = [
        *_better(judged, curve, measure),
        *_summed(judged, curve, measure),
        *_certified(gains, judged, measure),
        *_earlier(plan, judged, measure),
        *_costly(gains, measure),
        *_worse(judged, curve, measure),
    ]
    return found[:MOST]


def _better(judged: Judged, curve: str, measure: str) -> Iterator[str]:
    """Yield the method that is farthest below the curve."""
    for row in _decided(judged):
        if row.method.control or row.standing is None:
            continue
        if row.standing.distance.value > 0:
            bound = at_least(row.standing.where)
            yield (
                f"Train by {_named(row)} rather than {curve}: at equal {measure} its AUROC "
                f"is {bound}{row.standing.distance:.3f} lower "
                f"({_counted(row, row.p)}){_elsewhere(row, judged)}."
            )
            return


def _summed(judged: Judged, curve: str, measure: str) -> Iterator[str]:
    """Yield what it gives that the server learns sums alone."""
    for row in _decided(judged):
        is_summed = row.method.fields.get("secure_aggregation") == "masked"
        if is_summed and row.standing and row.standing.distance.value > 0:
            bound = at_least(row.standing.where)
            yield (
                f"Let the server learn sums alone: at equal {measure} the AUROC of "
                f"{_named(row)} is {bound}{row.standing.distance:.3f} lower than that of "
                f"{curve} ({_counted(row, row.p)})."
            )
            return


def _elsewhere(row: Row, judged: Judged) -> str:
    """Return the condition that it makes: utility on the classes of others."""
    untrained = next((one for one in judged.rows if one.standing is None), None)
    if untrained is None or row.others is None or untrained.others is None:
        return ""
    if row.others.high < untrained.others.low:
        return (
            ", if clients meet their own classes alone: on others' it reaches "
            f"{row.others:.3f}, no training {untrained.others:.3f}"
        )
    return ""


def _certified(gains: Sequence["_Gain"], judged: Judged, measure: str) -> Iterator[str]:
    """Yield the certified method that is worth most above no training, for each unit."""
    useful = [gain for gain in gains if gain.p < ALPHA and gain.over.value > 0]
    useful.sort(key=lambda gain: -gain.over.value)
    for guarantee in dict.fromkeys(gain.guarantee for gain in useful):
        best = next(gain for gain in useful if gain.guarantee == guarantee)
        of = f" ({guarantee})" if guarantee else ""
        yield (
            f"If all attacks have to be bounded, train by {_named(best.row)}: certified ε "
            f"{best.epsilon:.3g} against the server{of}, and {measure} "
            f"{best.over:.3f} above no training ({_counted(best.row, best.p)})"
            f"{_elsewhere(best.row, judged)}."
        )


def _costly(gains: Sequence["_Gain"], measure: str) -> Iterator[str]:
    """Yield what certified methods gain at most, where that is too little to train for."""
    p = max((p_above_zero(WORTH - gain.values) for gain in gains), default=1.0)
    if p >= ALPHA:
        return
    best = max(gains, key=lambda gain: gain.over.high)
    names = "; ".join(gain.row.method.label for gain in gains)
    yield (
        f"Release the model untrained rather than train it by {names}: the best gains "
        f"{best.over:.3f} of {measure} over no training, less than {WORTH} "
        f"(n = {len(best.values)}, {_chance(p)})."
    )


@dataclass(frozen=True)
class _Gain:
    """Utility of a certified row above no training, paired by seed, with Holm's p.

    Attributes:
        guarantee: Unit, neighbours and delta of the epsilon.
    """

    row: Row
    epsilon: float
    values: Seeds
    p: float = 1.0

    @property
    def guarantee(self) -> str:
        return self.row.runs[0].guarantee

    @property
    def over(self) -> Estimate:
        """The mean."""
        return mean_with_t(self.values.tolist())


def _gains(judged: Judged, utility: str) -> list[_Gain]:
    """Return what each row gains of which all runs are certified against the server."""
    start, found = judged.measured[0].utility, list[_Gain]()
    for row in judged.rows:
        proofs = [run.certified.get("server") for run in row.runs]
        runs = [run for run in row.runs if run.seed in start]
        if row.standing is None or None in proofs or len(runs) < FEWEST:
            continue
        values = [run.at(0).utility[utility] - start[run.seed] for run in runs]
        largest = max(one for one in proofs if one is not None)
        found.append(_Gain(row, largest, np.array(values)))
    adjusted = holm([p_of_zero(gain.values) for gain in found])
    return [replace(gain, p=p) for gain, p in zip(found, adjusted, strict=True)]


def _earlier(plan: BenchmarkPlan, judged: Judged, measure: str) -> Iterator[str]:
    """Yield the earliest stop that leaks less than the last one, and is worth as much."""
    stops, trainer = plan.reference.stops, plan.reference.trainer
    _untrained, *early, last = judged.measured
    both = [(_less(one, last, "leak"), _less(one, last, "utility")) for one in early]
    # Both have to hold of a stop: its p is the larger.
    adjusted = holm(
        [max(p_of_zero(leak), p_above_zero(WORTH - lost)) for leak, lost in both]
    )
    for stop, (leak, lost), p in zip(stops[:-1], both, adjusted, strict=True):
        if p < ALPHA and leak.mean() > 0:
            yield (
                f"Stop {trainer} after round {stop} and not {stops[-1]}: its AUROC is "
                f"{mean_with_t(leak.tolist()):.3f} lower, and {measure} "
                f"{mean_with_t(lost.tolist()):.3f} lower, by less than {WORTH} "
                f"(n = {len(leak)}, {_chance(p)})."
            )
            return


def _less(knot: Measured, last: Measured, name: str) -> Seeds:
    """Return by how much a knot is below the last one, by seed."""
    mine, other = getattr(knot, name), getattr(last, name)
    return np.array([other[seed] - mine[seed] for seed in sorted({*mine} & {*other})])


def _worse(judged: Judged, curve: str, measure: str) -> Iterator[str]:
    """Yield the method that is farthest above the curve."""
    for row in reversed(_decided(judged)):
        found = row.standing
        if found and found.where == "inside" and found.distance.value < 0:
            over = found.distance
            more = f"{-over.value:.3f} [{-over.high:.3f}, {-over.low:.3f}]"
            yield (
                f"Take {curve} rather than {_named(row)}, whose AUROC at equal {measure} is "
                f"{more} higher ({_counted(row, row.p)})."
            )
            return


def _decided(judged: Judged) -> Sequence[Row]:
    return [row for row in judged.rows if row.p is not None and row.p < ALPHA]


def _named(row: Row) -> str:
    return f"{row.method.label} ({row.choice.setting})"


def _counted(row: Row, p: float | None) -> str:
    return f"n = {len(row.runs)}, {_chance(1.0 if p is None else p)}"


def _chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
