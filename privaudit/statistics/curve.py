"""The ROC curve, and the true-positive rate at a low false-positive rate.

Conventions are those of :mod:`privaudit.statistics.roc`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Shaped
from scipy.special import bdtr, bdtrc

from privaudit.core.errors import ConfigError
from privaudit.statistics.delong import Clusters, Members, Others, checked_scores
from privaudit.statistics.estimate import Estimate, mean_with_t, needs, unresolved
from privaudit.statistics.intervals import (
    check_confidence,
    clopper_pearson,
    effective_count,
)

_TPR = "TPR at FPR {fpr}, order statistics and Clopper-Pearson"
_UNEVEN = (
    "needs {wanted} candidates of each client, or clients of like sizes: client "
    "{place} of {clients} has {fewest}, and the largest {most}"
)

MemberScores = Shaped[np.ndarray, " members"]
NonmemberScores = Shaped[np.ndarray, " nonmembers"]


def tpr_at_fpr(
    member_scores: MemberScores,
    nonmember_scores: NonmemberScores,
    fpr: float,
    confidence: float = 0.95,
    clusters: Clusters | None = None,
) -> Estimate:
    """Return the true-positive rate at a false-positive rate of at most ``fpr``.

    The threshold is the smallest score at which at most ``fpr`` of the non-members are
    called members; ties count as calls. The interval adds the error of choosing it on
    these non-members (where the true quantile may lie, by order statistics) to that of
    counting members (Clopper-Pearson). At 100 to 1,000 of each it covers 95-99 %; at a
    threshold taken as given Clopper-Pearson covers 52-92 %.

    Source: combining two errors: Zou and Donner, "Construction of confidence limits
    about effect measures: a general approach", Statistics in Medicine 27, 2008.

    With fewer non-members than ``10 / fpr`` the estimate is unresolved. Clusters make both
    errors those of the effective numbers of records.

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
    method = _TPR.format(fpr=f"{fpr:g}")
    sizes = _effective(members, others, fpr, clusters)
    if sizes[1] < needed:
        reason = needs(needed, "non-members", int(sizes[1]))
        return unresolved(reason, counts, method, confidence)
    low, rate, high = _rate_and_bounds(members, others, fpr, confidence, sizes)
    return Estimate(rate, low, high, counts, method, confidence)


def _effective(
    members: Members,
    others: Others,
    fpr: float,
    clusters: Clusters | None,
) -> tuple[float, float]:
    """Return how many independent members and non-members tell as much."""
    if clusters is None:
        return float(len(members)), float(len(others))
    threshold = np.quantile(others, 1 - fpr)
    pairs = zip((members, others), clusters, strict=True)
    ours, theirs = (effective_count(of > threshold, one) for of, one in pairs)
    return ours, theirs


def _rate_and_bounds(
    members: Members,
    others: Others,
    fpr: float,
    confidence: float,
    sizes: tuple[float, float],
) -> tuple[float, float, float]:
    """Return low, rate and high, the two errors added like legs of a right angle.

    That takes rates to change little by little with the threshold. Where non-members
    tie there, the next threshold is far away, and both errors count in full.
    """
    thresholds = _thresholds(others, fpr, confidence, int(sizes[1]))
    called = np.array([float((members > t).sum()) for t in thresholds])
    rate, fewest, most = (float(count) / len(members) for count in called)
    shown = called * (sizes[0] / len(members))
    floor, ceiling = clopper_pearson(shown, sizes[0], confidence)
    between = others[(others >= thresholds[2]) & (others <= thresholds[1])]
    if tied(between):
        return float(floor[1]), rate, float(ceiling[2])
    low = rate - float(np.hypot(rate - floor[0], rate - fewest))
    high = rate + float(np.hypot(ceiling[0] - rate, most - rate))
    return max(low, 0.0), rate, min(high, 1.0)


def _thresholds(
    others: Others, fpr: float, confidence: float, draws: int
) -> tuple[float, float, float]:
    """Return where at most ``fpr`` lie above, and bounds on where that truly is.

    The upper bound, then the lower. Of n draws Binomial(n, fpr) lie above the true one;
    of fewer ``draws`` than there are non-members, each stands for several.
    """
    count, tail = len(others), (1 - confidence) / 2
    ranked = np.concatenate([[np.inf], np.sort(others)[::-1], [-np.inf]])
    # 100 * 0.29 is 28.999...: without the nudge one call too few.
    allowed = int(np.floor(count * fpr + 1e-9))
    calls = np.arange(draws + 1)
    fewest = int((bdtr(calls, draws, fpr) <= tail).sum()) * count // draws
    most = 1 + int(np.argmax(bdtrc(calls, draws, fpr) <= tail))
    most = min(-(-most * count // draws), count + 1)
    return float(ranked[allowed + 1]), float(ranked[fewest]), float(ranked[most])


def mean_ranks(scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return each score's rank from 1, ties that of their mean, as scipy's ``rankdata``.

    Importing scipy.stats takes longer than most audits spend on statistics.

    Example:
        >>> mean_ranks(np.array([3.0, 1.0, 3.0]))
        array([2.5, 1. , 2.5])
    """
    _, of, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks: Float[np.ndarray, " n"] = (ties.cumsum() - (ties - 1) / 2)[of.reshape(-1)]
    return ranks


def pooled_ranks(
    clients: Sequence[Float[np.ndarray, " _"]],
) -> Float[np.ndarray, " all"]:
    """Return numbers in the order of candidates' ranks within their own client.

    Scores of different models are on different scales, and one client has too few
    records for a low false-positive rate: ranks, which need no truth, can be held to
    one threshold for all. A rank is divided by one more than the client's number of
    candidates, ties have the mean of theirs, and where ranks of two clients are equal
    the higher score goes first. With one client it is the order of its scores.

    Example:
        >>> pooled_ranks([np.array([5.0, 7.0]), np.array([0.1, 0.3])])
        array([1., 3., 0., 2.])
    """
    ranks = [mean_ranks(scores) / (len(scores) + 1) for scores in clients]
    both = np.stack([np.concatenate(ranks), np.concatenate(list(clients))])
    _, order = np.unique(both, axis=1, return_inverse=True)
    return order.reshape(-1).astype(np.float64)


def uneven(sizes: Sequence[int], fpr: float) -> str:
    """Return why ranks of clients of so many candidates tell no rate; "" if they do.

    The highest rank of n candidates is n / (n + 1): below a rate of 1 / n a client is
    hardly ever above a threshold that a much larger one sets, whatever leaks of it.

    Example:
        >>> uneven([2000, 20], 0.01)  # doctest: +ELLIPSIS
        'needs 100 candidates of each client, ...: client 2 of 2 has 20, and ... 2000'
        >>> uneven([20, 20], 0.01), uneven([2000, 200], 0.01)
        ('', '')
    """
    fewest, most = min(sizes), max(sizes)
    wanted = math.ceil(1 / fpr - 1e-9)
    if fewest >= wanted or most <= 2 * fewest:
        return ""
    return _UNEVEN.format(
        wanted=wanted,
        place=list(sizes).index(fewest) + 1,
        clients=len(sizes),
        fewest=fewest,
        most=most,
    )


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


# Without names for lengths: each seed has its own.
Groups = tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]


def tpr_over_seeds(groups: Sequence[Groups], fpr: float = 0.01) -> Estimate:
    """Return the rate at one threshold for all seeds, and its interval.

    The threshold is the one at which at most ``fpr`` of all seeds' non-members are
    called members. Two errors are added to the interval like the legs of a right angle:
    that of counting records (:func:`tpr_at_fpr`), and that
    of having so few seeds (Student's, of the seeds' rates at that threshold). At 3 to
    5 seeds of 250 to 400 records it covers 92 % (seeds that leak very unlike) to 99 %.
    A single seed has the first alone.

    Args:
        groups: Each seed's scores of members and of non-members; higher means more
            likely a member. Scores must be of one scale over seeds.
        fpr: In (0, 1); with fewer than ``10 / fpr`` non-members in all seeds together
            the estimate is unresolved.

    Example:
        >>> seeds = [(np.array([60.0, 95.0]), np.arange(50.0) * 2 + k) for k in (0, 1)]
        >>> print(tpr_over_seeds(seeds, fpr=0.1))
        0.500 [0.000, 0.932], n = 4 + 100
    """
    if not groups:
        raise ConfigError("There are no seeds to pool. Add runs.")
    members = np.concatenate([members for members, _ in groups])
    others = np.concatenate([others for _, others in groups])
    pooled = tpr_at_fpr(members, others, fpr)
    rates = _rates(groups, others, fpr)
    if pooled.unresolved or len(rates) < 2:
        return pooled
    spread, value = mean_with_t(rates), pooled.value
    half = (spread.high - spread.low) / 2
    return replace(
        pooled,
        low=max(value - math.hypot(value - pooled.low, half), 0.0),
        high=min(value + math.hypot(pooled.high - value, half), 1.0),
        method=f"{pooled.method}, and Student's over {len(rates)} seeds",
    )


def _rates(
    groups: Sequence[Groups], others: Float[np.ndarray, " all"], fpr: float
) -> list[float]:
    """Return each seed's rate above the threshold that all share."""
    allowed = int(np.floor(len(others) * fpr + 1e-9))
    threshold = np.sort(others)[::-1][allowed]
    return [
        float((members > threshold).mean()) for members, _ in groups if len(members)
    ]
