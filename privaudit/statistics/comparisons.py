"""Paired comparisons of two attacks, or two runs, on the same records, and what they say.

Everywhere: ``confidence`` is the nominal coverage of an interval, in (0, 1); ``clusters``
are numbers that records share which resemble one another, None if none do; arrays of
unlike lengths are a ConfigError.

A margin says from where on a difference matters. A claim that something grew or fell
is tested against the margin, at levels that hold for all the claims together (Holm). A
claim that nothing did needs an interval within the margins: whoever relies on all of
them at once errs no more often than with one, so those are not adjusted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import bdtr, logit, ndtr, ndtri, stdtr, stdtrit

from privaudit.core.errors import ConfigError, TooFewRecordsError
from privaudit.core.formatting import outcome_in_words
from privaudit.statistics.estimate import (
    Estimate,
    check_confidence,
    effective_count,
    normal_quantile,
    wilson,
)
from privaudit.statistics.roc import LEFT_OUT, Placements, delong_components
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling, enough_to_exclude

_PAIRED = "paired difference of AUROCs, DeLong with Satterthwaite's t"
_AVERAGED = ", averaged over {n} clients by pairs"

# Per client: scores a and b of each candidate, and whether it is a member. Without names
# for lengths: each client has its own.
PairedScores = Sequence[
    tuple[Shaped[np.ndarray, " _"], Shaped[np.ndarray, " _"], Bool[np.ndarray, " _"]]
]


@dataclass(frozen=True)
class Comparison:
    """A difference and the evidence that it is not zero."""

    estimate: Estimate
    p_value: float

    def __str__(self) -> str:
        return f"{self.estimate}, p = {self.p_value:.2g}"


def pooled_paired_auroc_difference(
    groups: PairedScores, confidence: float = 0.95
) -> Comparison:
    """Return the AUROC of scores a less that of b, averaged over clients by pairs.

    DeLong's paired test, with Student's t at Satterthwaite's degrees of freedom in
    place of the normal: at 12 records the normal covers 92 %, this 95 %. Where a
    variance that both classes share is the larger, it counts (Student beside Welch):
    with ties and unequal classes a class may have none of its own.

    Each client's records are compared within that client. Clients without a member or
    without a non-member are left out, and ``method`` says how many.

    Raises:
        TooFewRecordsError: No client has members and non-members.
        ConfigError: A score is not finite.
    """
    return paired_auroc_at(groups)(confidence)


def paired_auroc_at(
    groups: PairedScores, clusters: Sequence[Int[np.ndarray, " _"] | None] | None = None
) -> Callable[[float], Comparison]:
    """Return :func:`pooled_paired_auroc_difference` at any confidence.

    For p-values, which take intervals at many: the scores are compared once.
    """
    alike = clusters or [None] * len(groups)
    usable = []
    for (a, b, truth), one in zip(groups, alike, strict=True):
        if _same_length(a, b, truth) and truth.any() and not truth.all():
            of_classes = None if one is None else (one[truth], one[~truth])
            first = delong_components(a[truth], a[~truth], clusters=of_classes)
            usable.append((first - delong_components(b[truth], b[~truth]), truth))
    if not usable:
        raise TooFewRecordsError(
            f"None of {len(groups)} groups has both members and non-members. "
            "Add candidates of the class that is missing."
        )
    members = sum(int(truth.sum()) for _, truth in usable)
    others = sum(int((~truth).sum()) for _, truth in usable)
    left_out = len(groups) - len(usable)
    method = _PAIRED
    if len(groups) > 1:
        method += _AVERAGED.format(n=len(usable))
    if left_out:
        method += f"; {LEFT_OUT.format(n=left_out)}"
    differences = [difference for difference, _ in usable]

    def at(confidence: float) -> Comparison:
        value, low, high, p_value = _student(differences, confidence)
        estimate = Estimate(value, low, high, (members, others), method, confidence)
        return Comparison(estimate, p_value)

    return at


def _same_length(*arrays: Shaped[np.ndarray, " _"]) -> bool:
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise ConfigError(
            "A paired comparison needs both scores and the truth of every candidate, "
            f"and their numbers are {lengths}. Align them."
        )
    return True


def _student(
    groups: Sequence[Placements], confidence: float
) -> tuple[float, float, float, float]:
    """Return value, low, high and p of the pair-weighted mean of differences."""
    total = sum(group.pairs for group in groups)
    weights = [group.pairs / total for group in groups]
    value = sum(w * group.value for w, group in zip(weights, groups, strict=True))
    tests = [_error(groups, weights, parts) for parts in (_welch_parts, _pooled_parts)]
    half = max(
        float(stdtrit(freedom, (1 + confidence) / 2)) * error
        for error, freedom in tests
    )
    p_value = max(
        2 * float(stdtr(freedom, -abs(value) / error)) for error, freedom in tests
    )
    low, high = max(value - half, -1.0), min(value + half, 1.0)
    return value, low, high, min(p_value, 1.0)


Part = tuple[float, int | float]  # of the variance, and its degrees of freedom


def _error(
    groups: Sequence[Placements],
    weights: Sequence[float],
    parts_of: Callable[[Placements], list[Part]],
) -> tuple[float, float]:
    """Return a standard error, and its degrees of freedom after Satterthwaite."""
    parts = [
        (w * w * part, free)
        for w, group in zip(weights, groups, strict=True)
        for part, free in parts_of(group)
    ]
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / free for part, free in parts)
    return math.sqrt(variance), freedom


def _welch_parts(group: Placements) -> list[Part]:
    """Return the variance from each class, not all zero.

    A class of one record counts 1/4, more than a difference of two uniform placements.
    Where no record differs from another (both attacks perfect, say) the next disjoint
    pair may, by the rule of succession with probability 1/(pairs + 2).
    """
    if group.clusters is not None:  # where none differs, the next one may
        known = group.independent
        next_one = (1 + abs(group.value)) ** 2 / (known + 2) / known
        freedom = max(min(group.sizes) - 1, 0.25)
        return [(group.delong_variance or next_one, freedom)]
    if group.delong_variance == 0 and group.disjoint_pairs > 1:
        count = group.disjoint_pairs
        return [((1 + abs(group.value)) ** 2 / (count + 2) / count, count - 1)]
    sizes = len(group.members), len(group.nonmembers)
    return [
        (part if size > 1 else 0.25, max(size - 1, 1))
        for part, size in zip(group.variance_parts, sizes, strict=True)
    ]


def _pooled_parts(group: Placements) -> list[Part]:
    """Return the variance if one record varies as another, whatever its class.

    A small class that happens to tie has no variance of its own, and is not certain.
    """
    sizes = len(group.members), len(group.nonmembers)
    freedom = sum(sizes) - 2
    if group.clusters is not None or group.delong_variance == 0 or freedom == 0:
        return _welch_parts(group)
    squares = sum(
        part * size * (size - 1)
        for part, size in zip(group.variance_parts, sizes, strict=True)
    )
    return [(squares / freedom * sum(1 / size for size in sizes), freedom)]


def paired_accuracy_difference(
    correct_a: Bool[np.ndarray, " records"],
    correct_b: Bool[np.ndarray, " others"],
    confidence: float = 0.95,
    clusters: Int[np.ndarray, " clusters"] | None = None,
) -> Comparison:
    """Return the accuracy of model a less that of model b on the same test records.

    The p-value is McNemar's exact one, the interval Newcombe's score interval; on few
    records they may disagree about zero, and then the p-value is the stricter.

    Source: McNemar, Psychometrika 12, 1947; Newcombe, "Improved confidence intervals
    for the difference between binomial proportions based on paired data", Statistics
    in Medicine 17, 1998, method 10.

    With clusters, interval and p-value are of the effective number of records.

    Raises:
        ConfigError: There are no records.

    Example:
        >>> a, b = np.arange(100) < 80, np.arange(100) < 70
        >>> print(paired_accuracy_difference(a, b))
        0.100 [0.038, 0.165], n = 100, p = 0.002
    """
    _same_length(correct_a, correct_b)
    count = len(correct_a)
    if not count:
        raise ConfigError("Accuracies need test records, and there are 0. Add some.")
    only_a = int((correct_a & ~correct_b).sum())
    only_b = int((correct_b & ~correct_a).sum())
    both = int((correct_a & correct_b).sum())
    low, high = _newcombe_paired(both, only_a, only_b, count, confidence)
    fewer, discordant = min(only_a, only_b), only_a + only_b
    p_value = min(2 * float(bdtr(fewer, discordant, 0.5)), 1.0)
    method = "paired difference of accuracies, Newcombe's score interval, McNemar's p"
    value = (only_a - only_b) / count
    if clusters is not None:
        difference = correct_a.astype(np.float64) - correct_b
        wider = math.sqrt(count / effective_count(difference, clusters))
        low = max(value - wider * (value - low), -1.0)
        high = min(value + wider * (high - value), 1.0)
        p_value = 2 * float(ndtr(ndtri(p_value / 2) / wider))
        method += ", widened by clusters"
    return Comparison(Estimate(value, low, high, (count,), method, confidence), p_value)


def _newcombe_paired(
    both: int, only_a: int, only_b: int, count: int, confidence: float
) -> tuple[float, float]:
    neither = count - both - only_a - only_b
    rate_a, rate_b = (both + only_a) / count, (both + only_b) / count
    low_a, high_a = wilson(rate_a, count, confidence)
    low_b, high_b = wilson(rate_b, count, confidence)
    correlation = _phi(both, only_a, only_b, neither)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * correlation * a * b + b * b, 0.0))

    value = (only_a - only_b) / count
    low = value - reach(rate_a - low_a, high_b - rate_b)
    return low, value + reach(high_a - rate_a, rate_b - low_b)


def _phi(both: int, only_a: int, only_b: int, neither: int) -> float:
    """Return the correlation of being right, with Newcombe's continuity correction."""
    count = both + only_a + only_b + neither
    cross = float(both * neither - only_a * only_b)
    if cross > 0:
        cross = max(cross - count / 2, 0.0)
    margins = (
        (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    )
    return cross / math.sqrt(margins) if margins else 0.0


def holm(
    p_values: Sequence[float] | Float[np.ndarray, " tests"], repeats: int = 1
) -> Float[np.ndarray, " tests"]:
    """Return p-values adjusted for their number, in the order given.

    Rejecting those at most alpha keeps the chance of any false rejection at most alpha,
    however the tests depend on each other.

    Source: Holm, "A simple sequentially rejective multiple test procedure",
    Scandinavian Journal of Statistics 6, 1979.

    Args:
        p_values: In [0, 1]; may be empty.
        repeats: How many such families there were to choose from, at least 1: each is
            held to its part of the error.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    values = np.asarray(p_values, np.float64)
    if not ((values >= 0) & (values <= 1)).all():
        raise ConfigError(
            f"P-values lie in [0, 1], and there are {list(p_values)}. "
            "Leave out tests that could not be made."
        )
    order = np.argsort(values)
    factors = repeats * (len(values) - np.arange(len(values)))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * values[order]), 1.0)
    return adjusted


def p_above_chance(auroc: Estimate) -> float:
    """Return twice the one-sided p-value of an AUROC of at most 0.5, at most 1.

    Of one whose interval is symmetric on the logit scale, as those of
    :mod:`privaudit.statistics.roc` are.

    It is at most alpha just where an interval of confidence 1 - alpha lies wholly above
    0.5, so that "leaks" and a p-value of one attack never disagree. 1 where there is no
    interval, and where the AUROC is not above 0.5: the direction was fixed beforehand.

    Source: the interval of :func:`privaudit.statistics.roc.auroc_interval`, solved
    for the confidence at which it ends at 0.5; at an AUROC of 1 its exact one.

    Example:
        >>> round(p_above_chance(Estimate(0.6, 0.5, 0.6923, (50, 50), "AUROC")), 3)
        0.05
    """
    if auroc.unresolved or auroc.value <= 0.5 or auroc.low <= 0:
        return 1.0
    if auroc.value == 1:
        pairs = math.log((1 - auroc.confidence) / 2) / math.log(auroc.low)
        return min(2 * 0.5**pairs, 1.0)
    error = (logit(auroc.value) - logit(auroc.low)) / normal_quantile(auroc.confidence)
    return float(2 * ndtr(-logit(auroc.value) / error))


IntervalAt = Callable[[float], Estimate]  # the same difference at any confidence


def independent_difference(
    first: IntervalAt, second: IntervalAt, confidence: float = 0.95
) -> Estimate:
    """Return the difference of two independent estimates, first less second.

    Square and add: the distance of each end from the difference is the root of the sum of
    both squared distances. Of the same records it is rather too wide.

    Source: Zou and Donner, "Construction of confidence limits about effect measures: a
    general approach", Statistics in Medicine 27, 2008, equation 5.

    Example:
        >>> from functools import partial
        >>> from privaudit.statistics.estimate import proportion
        >>> a, b = partial(proportion, 70, 100), partial(proportion, 40, 100)
        >>> print(independent_difference(a, b))
        0.300 [0.157, 0.430], n = 100 + 100
    """
    a, b = first(confidence), second(confidence)
    value = a.value - b.value
    low = value - math.hypot(a.value - a.low, b.high - b.value)
    high = value + math.hypot(a.high - a.value, b.value - b.low)
    method = "difference of independent estimates, square and add"
    unresolved = a.unresolved or b.unresolved
    return Estimate(value, low, high, (*a.n, *b.n), method, confidence, unresolved)


Kind = Literal[
    "increase", "decrease", "no difference", "rose, size open", "fell, size open",
    "underpowered", "sampling unknown",
]  # fmt: skip

_SMALLEST_P = 1e-12  # below it nobody asks


@dataclass(frozen=True)
class Difference:
    """A difference of two measurements, and from where on it matters.

    Attributes:
        name: Of what was measured, such as "loss-threshold AUROC".
        interval_at: The difference at any confidence; the intervals are nested.
        margin: The largest difference that does not matter, above 0.
        sampling: Of a leak, how members were chosen: without a coin each, the number
            stands and there is no verdict.
    """

    name: str
    interval_at: IntervalAt
    margin: float = 0.05
    sampling: Sampling = "coin"

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ConfigError(
                f"A margin of {self.margin} for {self.name} is not between 0 and 1. It "
                "is the largest difference that does not matter: try 0.05."
            )


@dataclass(frozen=True)
class Change:
    """What may be said about one difference.

    Attributes:
        kind: "increase", "decrease": beyond the margin, after Holm. "no difference":
            none beyond the margin. "rose, size open", "fell": more than none, after
            Holm, and whether beyond the margin is open. "underpowered": none of these
            can be said. "sampling unknown": it is of a leak, and nobody declares a coin.
        margin: From where on it matters.
        p_value: Of no difference at all, adjusted for the number of claims (Holm).
        p_within: Of a difference within the margin, likewise: what ``kind`` rests on.
        enough: The n that would decide in 80 % of comparisons, if nothing differs or,
            where the interval excludes 0, if the difference is as large as it looks;
            None where the interval is unresolved.
        sentence: With the number, its interval and n.
    """

    kind: Kind
    estimate: Estimate
    margin: float
    p_value: float
    p_within: float
    enough: int | None
    sentence: str

    @property
    def excludes_increase(self) -> bool:
        """Whether an increase beyond the margin is ruled out."""
        return self._resolved and self.estimate.high < self.margin

    @property
    def excludes_decrease(self) -> bool:
        """Whether a decrease beyond the margin is ruled out."""
        return self._resolved and self.estimate.low > -self.margin

    @property
    def _resolved(self) -> bool:
        return self.kind != "sampling unknown" and not self.estimate.unresolved

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON knows them."""
        return {
            "kind": self.kind,
            "difference": self.estimate.to_dict(),
            "margin": self.margin,
            "p_value": self.p_value,
            "p_within": self.p_within,
            "enough": self.enough,
            "sentence": self.sentence,
        }


def judge_changes(
    differences: Sequence[Difference], alpha: float = 0.05
) -> list[Change]:
    """Return what may be said about each difference, in the order given.

    Where no difference is beyond its margin, the chance that any is called an increase
    or a decrease is at most ``alpha``, however many there are: give all that are looked
    at together. Intervals are printed at confidence ``1 - alpha``.

    Example:
        >>> from privaudit.statistics.estimate import two_proportions
        >>> rise = lambda c: two_proportions(70, 100, 40, 100, c)
        >>> print(judge_changes([Difference("success", rise)])[0].sentence)
        Increase: success differs by 0.300 [0.163, 0.422], n = 100 + 100, beyond 0.05.
    """
    check_confidence(alpha)
    equal = holm([p_value_within(d.interval_at, 0.0) for d in differences])
    within = holm([p_value_within(d.interval_at, d.margin) for d in differences])
    return [
        _judge(difference, (float(p), float(q)), alpha)
        for difference, p, q in zip(differences, equal, within, strict=True)
    ]


def p_value_within(interval_at: IntervalAt, margin: float) -> float:
    """Return the p-value of a difference that is within the margin, two-sided.

    That is 1 less the largest confidence whose interval lies beyond the margin, found
    to six digits, and at least 1e-12. At a margin of 0 it is that of no difference.
    """
    from scipy.optimize import brentq  # slow to import

    estimate = interval_at(0.5)
    if estimate.unresolved or abs(estimate.value) <= margin:
        return 1.0  # every interval holds the value

    def distance(logarithm: float) -> float:
        """Return how far the nearer end lies beyond the margin."""
        estimate = interval_at(-math.expm1(logarithm))
        return (estimate.low if estimate.value > 0 else -estimate.high) - margin

    least, most = math.log(_SMALLEST_P), math.log1p(-1e-9)
    if distance(most) <= 0:
        return 1.0
    if distance(least) > 0:
        return _SMALLEST_P
    return math.exp(float(brentq(distance, least, most, xtol=1e-6)))


def _judge(
    difference: Difference, p_values: tuple[float, float], alpha: float
) -> Change:
    estimate, margin = difference.interval_at(1 - alpha), difference.margin
    kind = _kind(estimate, margin, p_values[0] <= alpha, p_values[1] <= alpha)
    said = f"{difference.name} differs by {estimate}"
    if difference.sampling == "unknown":
        sentence = f"No verdict on leakage: {said}. {UNKNOWN_SAMPLING}"
        return Change("sampling unknown", estimate, margin, *p_values, None, sentence)
    enough = None if estimate.unresolved else _enough(estimate, margin)
    sentence = f"{kind.capitalize()}: {said}."
    if kind in ("increase", "decrease"):
        sentence = f"{kind.capitalize()}: {said}, beyond {margin:g}."
    elif kind == "no difference":
        sentence = f"No difference beyond {margin:g}: {said}."
    elif enough is not None:
        seen = (
            "it is as large as it looks" if estimate.excludes(0) else "nothing differs"
        )
        sentence = (
            f"{outcome_in_words(kind).capitalize()}: {said}, {_reach(estimate, margin)}; if "
            f"{seen}, n = about {enough} would decide in 80 of 100 "
            f"comparisons, in place of {sum(estimate.n)}."
        )
    return Change(kind, estimate, margin, *p_values, enough, sentence)


def _kind(
    estimate: Estimate, margin: float, is_any: bool, is_significant: bool
) -> Kind:
    if estimate.unresolved:
        return "underpowered"
    if is_significant and estimate.low > margin:
        return "increase"
    if is_significant and estimate.high < -margin:
        return "decrease"
    if -margin < estimate.low and estimate.high < margin:
        return "no difference"
    if is_any and estimate.excludes(0):
        return "rose, size open" if estimate.value > 0 else "fell, size open"
    return "underpowered"


def _enough(estimate: Estimate, margin: float) -> int:
    if not estimate.excludes(0):
        return enough_to_exclude(estimate, margin)
    apart = abs(abs(estimate.value) - margin)
    # At the margin itself no number decides: a hundredth of it stands for that.
    return enough_to_exclude(estimate, max(apart, margin / 100), sides=1)


def _reach(estimate: Estimate, margin: float) -> str:
    """Say what an undecided interval still holds."""
    if estimate.low > margin or estimate.high < -margin:
        return f"beyond {margin:g}, but not after Holm's correction for all metrics"
    if estimate.low > 0 or estimate.high < 0:
        return f"not by chance, but whether by more than {margin:g} is open"
    if estimate.high < margin:
        return f"which rules out an increase beyond {margin:g}, but no decrease"
    if estimate.low > -margin:
        return f"which rules out a decrease beyond {margin:g}, but no increase"
    return f"which includes both {-margin:g} and {margin:g}"
