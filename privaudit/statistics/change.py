"""Changes by several paired differences: increases, decreases, or too few records.

A margin says from where on a difference matters. A claim that something grew or fell
is tested against the margin, at levels that hold for all the claims together (Holm). A
claim that nothing did needs an interval within the margins: whoever relies on all of
them at once errs no more often than with one, so those are not adjusted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from privaudit.core.errors import ConfigError
from privaudit.statistics.comparisons import holm
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import check_confidence
from privaudit.statistics.power import enough_to_exclude
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling

IntervalAt = Callable[[float], Estimate]  # the same difference at any confidence
Kind = Literal[
    "increase", "decrease", "no difference", "underpowered", "sampling unknown"
]

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
            none beyond the margin. "underpowered": neither can be said. "sampling
            unknown": it is of a leak, and nobody declares a coin.
        estimate: The difference.
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
    to six digits, and at least 1e-12.

    Args:
        interval_at: As in :class:`Difference`.
        margin: At least 0; at 0 this is the p-value of no difference.
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
    kind = _kind(estimate, margin, p_values[1] <= alpha)
    said = f"{difference.name} differs by {estimate}"
    if difference.sampling != "coin":
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
            f"Underpowered: {said}, {_reach(estimate, margin)}; if "
            f"{seen}, n = about {enough} would decide in 80 of 100 "
            f"comparisons, in place of {sum(estimate.n)}."
        )
    return Change(kind, estimate, margin, *p_values, enough, sentence)


def _kind(estimate: Estimate, margin: float, is_significant: bool) -> Kind:
    if estimate.unresolved:
        return "underpowered"
    if is_significant and estimate.low > margin:
        return "increase"
    if is_significant and estimate.high < -margin:
        return "decrease"
    if -margin < estimate.low and estimate.high < margin:
        return "no difference"
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
