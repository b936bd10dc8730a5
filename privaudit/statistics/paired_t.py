"""Does one method leak more than another? Student's t over paired seeds, at planned looks.

Both methods are trained and attacked with the same seeds, and a seed is a replicate: its
records are none, as another training would rank them otherwise. A model of how much
seeds differ would gain nothing from ten pairs on, and errs more with fewer.

Looks are planned before the first difference is judged and share the error between them
(Bonferroni): one below twelve pairs, else one at half of them and one at the end. Who
looked after every seed from 4 to 20 would err in 10 % and not in 2.5 %.

Source: Student, "The probable error of a mean", Biometrika 6, 1908; tests against a
margin: Piaggio et al., "Reporting of noninferiority and equivalence randomized trials",
JAMA 308, 2012.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import chdtri, ndtri, stdtrit

from privaudit.statistics.estimate import Estimate, paired_difference

FEWEST = 4  # pairs: with fewer a spread says little of itself
TWO_LOOKS = 12  # pairs from which on half of them may decide
_POWER, _SURE = 0.8, 0.8  # of a later gate; that the spread is below its upper bound
_MOST = 10_000  # pairs that anybody would plan

PairedKind = Literal["pass", "regression", "rose, size open", "underpowered"]


def planned_looks(pairs: int) -> tuple[int, ...]:
    """Return after how many pairs to look, where so many can be had; none below four.

    Example:
        >>> planned_looks(3), planned_looks(10), planned_looks(12)
        ((), (10,), (6, 12))
    """
    if pairs < FEWEST:
        return ()
    return (pairs,) if pairs < TWO_LOOKS else (pairs // 2, pairs)


@dataclass(frozen=True)
class PairedJudgement:
    """What pairs say at a look.

    Attributes:
        kind: "regression": the first leaks more, beyond the margin. "pass": that is
            ruled out. "rose, size open": it leaks more, and whether beyond the margin
            is open. "underpowered": none of these.
        estimate: First less second, at the confidence of one look.
        further: Pairs of a gate of its own that decide in 80 % of cases, at the spread
            as it was found and at its upper 80 % bound; None where it is decided.
    """

    kind: PairedKind
    estimate: Estimate
    further: tuple[int, int] | None = None


def judge_pairs(
    first: Sequence[float],
    second: Sequence[float],
    margin: float,
    looks: int = 1,
    alpha: float = 0.05,
) -> PairedJudgement:
    """Return what may be said of the first method's leak beside the second's.

    A pass and a regression are each wrong in at most alpha / 2 of gates, all looks of
    one taken together.

    Args:
        first: AUROCs, one for each seed.
        second: Those of the same seeds.
        margin: The largest rise that does not matter, in (0, 1).
        looks: How many were planned, at least 1.
        alpha: Of both sides together, in (0, 1).

    Example:
        >>> judge_pairs([0.6, 0.62, 0.61, 0.63], [0.5, 0.51, 0.52, 0.5], 0.05).kind
        'regression'
    """
    estimate = paired_difference(first, second, 1 - alpha / looks)
    kind: PairedKind = "underpowered"
    if estimate.high < margin:
        kind = "pass"
    elif estimate.low > margin:
        kind = "regression"
    elif estimate.low > 0:
        kind = "rose, size open"
    further = None
    if kind not in ("pass", "regression"):
        spread = float(np.std(np.subtract(first, second), ddof=1))
        apart = max(abs(estimate.value - margin), margin / 5)
        if kind == "underpowered":  # then planned for where nothing differs
            apart = margin
        further = pairs_that_decide(spread, len(first), apart, alpha)
    return PairedJudgement(kind, estimate, further)


def pairs_that_decide(
    spread: float, pairs: int, apart: float, alpha: float = 0.05
) -> tuple[int, int]:
    """Return how many pairs decide in 80 % of cases, and how many if the spread is larger.

    The larger one is its upper 80 % bound by chi-square: then 89 to 99 % are decided, and
    65 to 82 % with the spread as it was found in so few pairs.

    Args:
        spread: Standard deviation of so many pairs' differences.
        pairs: At least 2.
        apart: From the truth to the margin, above 0.
        alpha: As in :func:`judge_pairs`.

    Example:
        >>> pairs_that_decide(0.04, 10, 0.05)
        (7, 11)
    """
    freedom = pairs - 1
    surer = spread * math.sqrt(freedom / float(chdtri(freedom, _SURE)))
    return _enough(spread / apart, alpha), _enough(surer / apart, alpha)


def _enough(ratio: float, alpha: float) -> int:
    """Return the fewest pairs whose error is that small beside the distance."""
    for pairs in range(FEWEST, _MOST):
        error = alpha / 2 / len(planned_looks(pairs))
        quantile = float(stdtrit(pairs - 1, 1 - error) + ndtri(_POWER))
        if quantile * ratio <= math.sqrt(pairs):
            return pairs
    return _MOST
