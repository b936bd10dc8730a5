"""The ROC curve, and the true-positive rate at a low false-positive rate."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped
from scipy.special import bdtr, bdtrc

from privaudit.errors import ConfigError
from privaudit.statistics.delong import checked_scores
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.intervals import check_confidence, clopper_pearson

MemberScores = Shaped[np.ndarray, " members"]
NonmemberScores = Shaped[np.ndarray, " nonmembers"]


def tpr_at_fpr(
    member_scores: MemberScores,
    nonmember_scores: NonmemberScores,
    fpr: float,
    confidence: float = 0.95,
) -> Estimate:
    """Return the true-positive rate at a false-positive rate of at most ``fpr``.

    The threshold is the smallest score at which at most ``fpr`` of the non-members are
    called members; ties count as calls. The interval adds the error of choosing it on
    these non-members (where the true quantile may lie, by order statistics) to that of
    counting members (Clopper-Pearson). At 100 to 1,000 of each it covers 95-99 %; at a
    threshold taken as given Clopper-Pearson covers 52-92 %.

    Source: combining two errors: Zou and Donner, "Construction of confidence limits
    about effect measures: a general approach", Statistics in Medicine 27, 2008.

    Args:
        member_scores: At least one, finite.
        nonmember_scores: With fewer than ``10 / fpr`` the estimate is unresolved.
        fpr: In (0, 1).
        confidence: Nominal coverage, in (0, 1).

    Raises:
        ConfigError: ``fpr`` is out of range, a class is empty, or a score not finite.

    Example:
        >>> print(tpr_at_fpr(np.array([60.0, 95.0]), np.arange(100.0), fpr=0.1))
        0.500 [0.000, 0.987], n = 2 + 100
        >>> print(tpr_at_fpr(np.array([60.0, 95.0]), np.arange(100.0), fpr=0.01))
        unresolved (needs 1000 non-members, has 100)
    """
    check_confidence(confidence)
    members, others = checked_scores(member_scores, nonmember_scores)
    if not 0 < fpr < 1:
        raise ConfigError(
            f"A false-positive rate of {fpr} is not between 0 and 1. Try 0.01."
        )
    counts, needed = (len(members), len(others)), int(np.ceil(10 / fpr - 1e-9))
    method = f"TPR at FPR {fpr:g}, order statistics and Clopper-Pearson"
    if len(others) < needed:
        reason = f"needs {needed} non-members, has {len(others)}"
        return unresolved(reason, counts, method, confidence)
    low, rate, high = _rate_and_bounds(members, others, fpr, confidence)
    return Estimate(rate, low, high, counts, method, confidence)


def _rate_and_bounds(
    members: Float[np.ndarray, " members"],
    others: Float[np.ndarray, " nonmembers"],
    fpr: float,
    confidence: float,
) -> tuple[float, float, float]:
    """Return low, rate and high, the two errors added like legs of a right angle.

    That takes rates to change little by little with the threshold. Where non-members
    tie there, the next threshold is far away, and both errors count in full.
    """
    thresholds = _thresholds(others, fpr, confidence)
    called = np.array([float((members > t).sum()) for t in thresholds])
    rate, fewest, most = (float(count) / len(members) for count in called)
    floor, ceiling = clopper_pearson(called, len(members), confidence)
    between = others[(others >= thresholds[2]) & (others <= thresholds[1])]
    if tied(between):
        return float(floor[1]), rate, float(ceiling[2])
    low = rate - float(np.hypot(rate - floor[0], rate - fewest))
    high = rate + float(np.hypot(ceiling[0] - rate, most - rate))
    return max(low, 0.0), rate, min(high, 1.0)


def _thresholds(
    others: Float[np.ndarray, " nonmembers"], fpr: float, confidence: float
) -> tuple[float, float, float]:
    """Return where at most ``fpr`` lie above, and bounds on where that truly is.

    The upper bound, then the lower. Of n draws Binomial(n, fpr) lie above the true one.
    """
    count, tail = len(others), (1 - confidence) / 2
    ranked = np.concatenate([[np.inf], np.sort(others)[::-1], [-np.inf]])
    # 100 * 0.29 is 28.999...: without the nudge one call too few.
    allowed = int(np.floor(count * fpr + 1e-9))
    calls = np.arange(count + 1)
    fewest = int((bdtr(calls, count, fpr) <= tail).sum())
    most = 1 + int(np.argmax(bdtrc(calls, count, fpr) <= tail))
    return float(ranked[allowed + 1]), float(ranked[fewest]), float(ranked[most])


def tied(scores: Shaped[np.ndarray, " scores"]) -> int:
    """Return how many scores are not the only one of their value.

    Example:
        >>> tied(np.array([0.0, 1.0, 0.0, 2.0]))
        2
    """
    _, counts = np.unique(scores, return_counts=True)
    return int(counts[counts > 1].sum())


@dataclass(frozen=True)
class RocCurve:
    """Both rates at every threshold, from (0, 0) to (1, 1), all points kept.

    Attributes:
        fpr: Non-decreasing.
        tpr: Non-decreasing.
        members: How many members there are.
        nonmembers: How many non-members there are.
    """

    fpr: Float[np.ndarray, " points"]
    tpr: Float[np.ndarray, " points"]
    members: int
    nonmembers: int

    def band(
        self, confidence: float = 0.95
    ) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
        """Return pointwise Clopper-Pearson bounds on ``tpr``.

        Each holds for one threshold given beforehand: not for the whole curve, and
        without the error of ``fpr``. For drawing; to claim, use :func:`tpr_at_fpr`.
        """
        return clopper_pearson(self.tpr * self.members, self.members, confidence)


def roc_curve(
    member_scores: MemberScores, nonmember_scores: NonmemberScores
) -> RocCurve:
    """Return the ROC curve; a score at the threshold is called a member.

    Raises:
        ConfigError: A class is empty, or a score is not finite.

    Example:
        >>> curve = roc_curve(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
        >>> curve.fpr, curve.tpr
        (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
    """
    members, others = checked_scores(member_scores, nonmember_scores)
    thresholds = np.unique(np.concatenate([members, others]))[::-1]

    def rate(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " points"]:
        below = np.searchsorted(np.sort(scores), thresholds, "left")
        return np.concatenate([[0.0], (len(scores) - below) / len(scores)])

    return RocCurve(rate(others), rate(members), len(members), len(others))
