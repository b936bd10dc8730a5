"""From scores and guesses to AUROC, ROC curve, rates and attack accuracy.

Higher scores mean more likely a member, and ties between a member and a non-member
count one half. Scores of different clients come from different models, so
:func:`pooled_auroc` averages what each client's scores achieve. Rates at one threshold
for all clients (:func:`tpr_at_fpr` on joined scores) are what an adversary gets who
does compare them: a lower figure than a threshold for each client would give. The
threshold behind guesses must have been fixed elsewhere, on shadow models or on a split
of its own: the best threshold on the target's truth is right too often.

Errors of an AUROC are computed from DeLong's placements. That of a member is the share of
non-members that score below it, and that of a non-member the share of members that score
above it; ties count one half. The mean of either is the AUROC, and their variances are
those of its two independent parts.

Everywhere: ``confidence`` is the nominal coverage of an interval, in (0, 1). ``clusters``
are numbers that records share which resemble one another, each with a coin of its own;
None if none do. A class without scores, scores that are not finite, arrays of unlike
lengths and numbers out of range are a ConfigError.

Source: DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or more
correlated receiver operating characteristic curves", Biometrics 44, 1988; the mid-ranks
that make it O(n log n): Sun and Xu, IEEE Signal Processing Letters 21, 2014; of records
in clusters: Obuchowski, "Nonparametric analysis of clustered ROC curve data",
Biometrics 53, 1997.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import bdtr, bdtrc, expit, logit, stdtrit

from privaudit.core.errors import ConfigError, TooFewRecordsError
from privaudit.statistics.estimate import (
    STUDENT,
    Estimate,
    check_confidence,
    clopper_pearson,
    effective_count,
    inflation,
    mean_with_t,
    needs,
    normal_quantile,
    proportion,
    two_proportions,
    unresolved,
)

Clusters = tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]
"""Numbers that resembling records share, of members and of non-members."""
Members = Float[np.ndarray, " members"]
Others = Float[np.ndarray, " nonmembers"]
AnyScores = Shaped[np.ndarray, "..."]


@dataclass(frozen=True)
class Placements:
    """The placements of one AUROC, or of a difference of two on the same records.

    Attributes:
        members: In [0, 1], of a difference in [-1, 1].
        nonmembers: Likewise; has the same mean.
        counts: How many members, and others, have each distinct score, from the lowest
            on; None of a difference.
        clusters: Numbers that resembling records share, of members and of non-members;
            None where all are independent.
    """

    members: Members
    nonmembers: Others
    counts: Int[np.ndarray, "2 values"] | None = None
    clusters: Clusters | None = None

    def __sub__(self, other: "Placements") -> "Placements":
        """Return the placements of the difference; the records must be the same."""
        return Placements(
            self.members - other.members,
            self.nonmembers - other.nonmembers,
            clusters=self.clusters,
        )

    @cached_property
    def value(self) -> float:
        """The AUROC, or the difference of two."""
        return float(self.members.mean())

    @property
    def pairs(self) -> int:
        """How many pairs of a member and a non-member there are."""
        return len(self.members) * len(self.nonmembers)

    @property
    def disjoint_pairs(self) -> float:
        """How many of those pairs share no record, and so are independent.

        Of clustered records, how many share no cluster.
        """
        return min(*self.sizes, float(self.independent // 2))

    @cached_property
    def sizes(self) -> tuple[float, float]:
        """How many members and non-members there are.

        Of clustered records: of how many clusters of one size each class would say as
        much. A class whose records are mostly one cluster's has hardly more than one.

        Source: Kish, "Survey sampling", Wiley 1965, section 11.7.
        """
        if self.clusters is None:
            return float(len(self.members)), float(len(self.nonmembers))
        counts = [np.unique(one, return_counts=True)[1] for one in self.clusters]
        members, others = (float(c.sum() ** 2 / (c @ c)) for c in counts)
        return members, others

    @cached_property
    def independent(self) -> int:
        """How many records, or clusters, there are in both classes together."""
        if self.clusters is None:
            return 2 * max(len(self.members), len(self.nonmembers))
        return max(2, len(np.unique(np.concatenate(self.clusters))))

    @cached_property
    def variance_parts(self) -> tuple[float, float]:
        """The variance from the draw of members, and from that of non-members.

        Zero where all placements of a class are equal or there is only one.
        """
        return _variance_of_mean(self.members), _variance_of_mean(self.nonmembers)

    @property
    def delong_variance(self) -> float:
        """DeLong's variance; zero at an AUROC of 0 or 1, where it says nothing.

        Of clustered records it is Obuchowski's.
        """
        if self.clusters is None:
            return float(sum(self.variance_parts))
        return _clustered_variance(self, self.clusters)

    def against(self, other: "Placements") -> float:
        """Return DeLong's covariance with another AUROC on the same records."""
        return _covariance_of_means(self.members, other.members) + _covariance_of_means(
            self.nonmembers, other.nonmembers
        )


def _clustered_variance(placed: Placements, clusters: Clusters) -> float:
    """Return the variance by sums over clusters, which may hold both classes.

    Source: Obuchowski 1997, equations 4 to 7.
    """
    _, number = np.unique(np.concatenate(clusters), return_inverse=True)
    classes = placed.members - placed.value, placed.nonmembers - placed.value
    parts = np.split(number, [len(placed.members)])
    count = int(number.max()) + 1
    x, y = (
        np.bincount(part, of_class, minlength=count) / len(of_class)
        for part, of_class in zip(parts, classes, strict=True)
    )
    with_members, with_others = placed.sizes
    total = inflation(with_members) * (x @ x) + inflation(with_others) * (y @ y)
    return max(0.0, float(total + 2 * inflation(count) * (x @ y)))


def delong_components(
    member_scores: AnyScores,
    nonmember_scores: AnyScores,
    *,
    clusters: Clusters | None = None,
) -> Placements:
    """Return the placements of both classes; as :func:`checked_scores` raises."""
    members, others = checked_scores(member_scores, nonmember_scores)
    above = _share_below(members, others)
    below = _share_below(others, members)
    _, value = np.unique(np.concatenate([members, others]), return_inverse=True)
    parts = np.split(value.reshape(-1), [len(members)])
    counts = np.stack([np.bincount(part, minlength=value.max() + 1) for part in parts])
    return Placements(above, 1 - below, counts, clusters)


def checked_scores(
    member_scores: AnyScores, nonmember_scores: AnyScores
) -> tuple[Members, Others]:
    """Return both as float64, one finite number for each of at least one record.

    Raises:
        ConfigError: They are not.
    """
    members = np.asarray(member_scores, np.float64)
    others = np.asarray(nonmember_scores, np.float64)
    if members.ndim != 1 or others.ndim != 1:
        raise ConfigError(
            f"Scores are of shape {members.shape} for members and {others.shape} for "
            "non-members. Give one number for each record: of a table with a row for "
            "each model, one row, such as confidence[0]."
        )
    if not len(members) or not len(others):
        raise TooFewRecordsError(
            f"An AUROC needs members and non-members, and there are {len(members)} "
            f"members and {len(others)} non-members. Add candidates of the kind that "
            "is missing."
        )
    bad = int((~np.isfinite(members)).sum() + (~np.isfinite(others)).sum())
    if bad:
        raise ConfigError(
            f"Scores must be finite, and {bad} of {len(members) + len(others)} are "
            "not. Look for a loss that overflowed."
        )
    return members, others


@dataclass(frozen=True)
class _TiltedSamples:
    """Samples whose weights are tilted so that their AUROC is another, of some clients.

    Each class has one record more, spread over its client's scores, so that neither ties
    nor a class of one look like certainty. The tilt is exponential in what a record adds
    to the AUROC: of all weights these are the nearest that give a hypothesis its AUROC.

    Attributes:
        masses: Weights of members, and of others, at each distinct score of each client.
        influences: By how much a tilt of 1 moves the logarithm of those weights.
        starts: Where in them each client begins.
        sizes: Members and others of each client.
        weights: Of each client in the AUROC.
        is_special: Whether records alone do not tell the variance.
    """

    masses: Float[np.ndarray, "2 values"]
    influences: Float[np.ndarray, "2 values"]
    starts: Int[np.ndarray, " clients"]
    sizes: Float[np.ndarray, "2 clients"]
    weights: Float[np.ndarray, " clients"]
    is_special: bool

    @classmethod
    def of(
        cls, clients: Sequence[Placements], weights: Float[np.ndarray, " clients"]
    ) -> "_TiltedSamples":
        counts = [one.counts for one in clients if one.counts is not None]
        sizes = np.array([one.sum(axis=1) for one in counts], np.float64).T
        scale = 8 / (weights**2 @ (1 / sizes).sum(axis=0))
        masses = [
            (c * (np.array(of.sizes) / c.sum(1))[:, None] + c.sum(0) / c.sum())
            / (np.array(of.sizes)[:, None] + 1)
            for of, c in zip(clients, counts, strict=True)
        ]
        influences = [
            scale * w * _centred(u, v) / size[:, None]
            for w, (u, v), size in zip(weights, masses, sizes.T, strict=True)
        ]
        starts = np.cumsum([0, *(one.shape[1] for one in counts[:-1])])
        joined = np.concatenate(masses, axis=1), np.concatenate(influences, axis=1)
        special = any(
            one.clusters is not None or _is_tied(one) or one.disjoint_pairs == 1
            for one in clients
        )
        return cls(*joined, starts, sizes, weights, special)

    @cached_property
    def _number(self) -> Int[np.ndarray, " values"]:
        """Which client's each value is, counted from 0."""
        length = np.diff(np.append(self.starts, self.masses.shape[1]))
        return np.repeat(np.arange(len(length)), length)

    def at(
        self, tilts: Float[np.ndarray, " tilts"]
    ) -> tuple[Float[np.ndarray, " tilts"], Float[np.ndarray, " tilts"]]:
        """Return the AUROCs of tilted samples, and DeLong's variances of those."""
        tilted = self.masses * np.exp(tilts[:, None, None] * self.influences)
        tilted /= self._sums(tilted).take(self._number, axis=2)
        # Each client's weights sum to 1, so all before it sum to its number.
        below = np.cumsum(tilted, axis=2) - tilted / 2 - self._number
        np.subtract(1, below[:, 0], out=below[:, 0])
        placed = below[:, ::-1]  # a member above others, another below members
        aurocs = self._sums(tilted[:, 0] * placed[:, 0])
        parts = np.maximum(self._sums(tilted * placed**2) - aurocs[:, None] ** 2, 0)
        parts = (parts / np.maximum(self.sizes - 1, 1)).sum(axis=1)
        return aurocs @ self.weights, parts @ self.weights**2

    def _sums(
        self, values: Float[np.ndarray, "tilts *sides values"]
    ) -> Float[np.ndarray, "tilts *sides clients"]:
        return np.add.reduceat(values, self.starts, axis=-1)

    def ends(self, value: float, z: float, variance: float) -> tuple[float, float]:
        """Return the AUROCs whose samples just allow ``value``, z standard errors away.

        Where the variance at hand is more than that of the samples as they are, of
        clusters or of clients with a class of one, all errors are as much longer.
        """
        if self.is_special:
            plain = float(self.at(np.zeros(1))[1][0])
            z *= math.sqrt(max(1.0, variance / plain))
        sign = np.array([-1.0, 1.0])
        inner, outer = -_MOST_TILT * sign, _MOST_TILT * sign
        for _ in range(_HALVINGS):
            middle = (inner + outer) / 2
            aurocs, variances = self.at(middle)
            is_out = sign * (aurocs - value) > z * np.sqrt(variances)
            inner, outer = np.where(is_out, (inner, middle), (middle, outer))
        low, high = self.at((inner + outer) / 2)[0]
        return min(float(low), value), max(float(high), value)


_MOST_TILT, _HALVINGS, _ROUNDING = 30.0, 32, 1e-12


def _centred(
    u: Float[np.ndarray, " values"], v: Float[np.ndarray, " values"]
) -> Float[np.ndarray, "2 values"]:
    """Return what a member, and another, of each score adds to an AUROC, around 0."""
    return np.stack([np.cumsum(v) - v / 2 - 0.5, 0.5 - np.cumsum(u) + u / 2])


def _student(placed: Placements) -> float:
    """Return what few clusters add to a variance that is theirs; 1 without any."""
    if placed.clusters is None:
        return 1.0
    wide = stdtrit(max(min(placed.sizes) - 1, 0.25), 0.975)
    return float(wide / normal_quantile(0.95)) ** 2


def _is_tied(placed: Placements) -> bool:
    return placed.counts is not None and placed.counts.shape[1] == 1


def _exchangeable(placed: Placements) -> float:
    """Return Wilcoxon's variance: that of scores that tell nothing and tie as these do.

    Source: Lehmann, "Nonparametrics", 1975, section 1.4, equation 1.35.
    """
    assert placed.counts is not None
    ties, count = placed.counts.sum(axis=0).astype(np.float64), sum(placed.sizes)
    total = float(ties.sum())
    share = float((ties**3 - ties).sum()) / (total**3 - total)
    return (1 - share) * (count + 1) / (12 * placed.sizes[0] * placed.sizes[1])


def _variances(
    clients: Sequence[Placements], weights: Float[np.ndarray, " clients"]
) -> tuple[float, float]:
    """Return that of a weighted mean of independent AUROCs, and one that is anchored.

    DeLong's, or that of clusters. Of a client whose scores all tie it is the bound for
    any scores. A class of one has no variance of its own, so clients with such a class
    are taken as draws of one client (collapsed strata): what their AUROCs differ by is
    an upper bound in expectation. Anchored means with one further placement of 1/2 in
    each class, or one further client at 1/2.

    Source: Birnbaum and Klose, "Bounds for the variance of the Mann-Whitney statistic",
    Annals of Mathematical Statistics 28, 1957; Cochran, "Sampling techniques", 3rd
    edition, Wiley 1977, section 5A.12.
    """
    values = np.array([one.value for one in clients])
    each = weights**2 * [
        1 / (4 * one.disjoint_pairs)
        if _is_tied(one)
        else one.delong_variance * _student(one)
        for one in clients
    ]
    further = np.array([sum(1 / size**2 for size in one.sizes) for one in clients])
    apart = weights**2 * (values - 0.5) ** 2 * further
    single = np.array([one.disjoint_pairs == 1 for one in clients])
    if np.count_nonzero(single) > 1:
        between, further_one = _between(values[single], weights[single])
        each[single] = max(between, float(each[single].sum())) / single.sum()
        apart[single] = further_one / single.sum()
    return float(each.sum()), float(each.sum() + apart.sum())


def _between(
    values: Float[np.ndarray, " clients"], weights: Float[np.ndarray, " clients"]
) -> tuple[float, float]:
    """Return the variance of Σ weight value by how values differ, and its anchor.

    The anchor is what one further value of 1/2 adds, of the effective number of clients.
    """
    total, squares = float(weights.sum()), float(weights @ weights)
    mean = float(weights @ values) / total
    spread = float(weights**2 @ (values - mean) ** 2)
    further = (mean - 0.5) ** 2 * (squares / total) ** 2
    return len(values) / (len(values) - 1) * spread, further


def auroc_interval(
    value: float,
    clients: Sequence[Placements],
    confidence: float,
    *,
    is_tested: bool = False,
    design_effect: float = 1.0,
) -> tuple[float, float]:
    """Return an interval that stays within [0, 1] and always has a width.

    An AUROC belongs to it if samples that are tilted to have it, with DeLong's variance
    of those, allow the value that was found (a score interval: what is tested is the
    hypothesis, not the sample). The end away from 1/2 is at least as far as DeLong's on
    the logit scale; of clusters and classes of one, both are. It holds 1/2 where
    Wilcoxon's variance, or one that is anchored at 1/2, allows that and disjoint pairs
    do: ties make a tilted sample too sure of it. At 0 and 1 it is no nearer than
    disjoint pairs allow. So it misses 0.5, 0.7 and 0.9 on either side in 2.5 % of
    cases, and at most 5, for 6 distributions, tied or not, at 10 to 1,500 records a
    class. The tables are in docs/selftest.md.

    Args:
        value: Of all clients, averaged by pairs.
        clients: Their placements. Of clusters errors are as much longer as the design
            effect says.
        confidence: Of the interval.
        is_tested: Whether 1/2 is tested elsewhere, so that nothing is done for it here.
        design_effect: By what the variance is larger than that of the clients.

    Source: tilting: Efron, "Nonparametric standard errors and confidence intervals",
    Canadian Journal of Statistics 9, 1981, section 11; the logit: Pepe, "The statistical
    evaluation of medical tests", 2003, ch. 5; further records: after Agresti and Caffo,
    American Statistician 54, 2000.
    """
    weights = _weights(clients)
    pairs = float(min(np.array([c.disjoint_pairs for c in clients]) / weights))
    exact, _ = extreme_interval(1.0, pairs, confidence)
    if all(map(_is_tied, clients)):
        return exact / 2, 1 - exact / 2  # a pair that does not tie counts 1/2 more
    z = normal_quantile(confidence) * math.sqrt(design_effect)
    variance, anchored = _variances(clients, weights)
    tilted = _TiltedSamples.of(clients, weights)
    low, high = tilted.ends(value, z, variance)
    if value in (0.0, 1.0):
        return (min(low, exact), 1.0) if value else (0.0, max(high, 1 - exact))
    inner, outer = (
        z * math.sqrt(one) / (value * (1 - value)) for one in (anchored, variance)
    )
    is_half = abs(value - 0.5) < _ROUNDING
    if value > 0.5 or is_half or tilted.is_special:
        high = max(high, float(expit(logit(value) + (outer if value > 0.5 else inner))))
    if value < 0.5 or is_half or tilted.is_special:
        low = min(low, float(expit(logit(value) - (outer if value < 0.5 else inner))))
    nearer = value - (value - 0.5) / (2 * pairs + 1)
    least = 16 * float(weights**2 @ [_exchangeable(one) for one in clients])
    error = max(anchored / (nearer * (1 - nearer)) ** 2, least)
    proved = _by_counts(max(value, 1 - value), pairs, confidence) > 0.5
    if not (is_tested or proved) and abs(logit(value)) <= z * math.sqrt(error):
        low, high = min(low, 0.5), max(high, 0.5)
    return low, high


def extreme_interval(
    value: float, disjoint_pairs: int | float, confidence: float
) -> tuple[float, float]:
    """Return the exact interval of an AUROC of 0 or 1.

    Pairs that share no record are independent tosses, and all of them fell the same
    way, so the chance of that way is at least (alpha/2)^(1/pairs).
    """
    low = ((1 - confidence) / 2) ** (1 / disjoint_pairs)
    return (low, 1.0) if value else (0.0, 1 - low)


def _by_counts(value: float, disjoint_pairs: int | float, confidence: float) -> float:
    """Return what an AUROC of 1/2 or more is at least, by pairs that share no record.

    Such pairs are independent tosses, and a mean over all pairs varies no more than one
    over these. Of few pairs out of order, spread over clients, the logit's slope makes
    far more: 0.9996 of twelve clients had [0.001, 1.000].

    Source: Clopper and Pearson 1934 on disjoint pairs; their mean: Hoeffding,
    "Probability inequalities for sums of bounded random variables", JASA 58, 1963,
    section 5.
    """
    won = np.array([value * disjoint_pairs])
    return float(clopper_pearson(won, disjoint_pairs, confidence)[0][0])


def _share_below(
    scores: Float[np.ndarray, " scores"], others: Float[np.ndarray, " others"]
) -> Float[np.ndarray, " scores"]:
    # Looked up in order, so that the search walks through memory once: 10^6 scores
    # take a quarter of the time.
    order, ranked = np.argsort(scores), np.sort(others)
    ordered = scores[order]
    below = np.searchsorted(ranked, ordered, "left")
    not_above = np.searchsorted(ranked, ordered, "right")
    shares = np.empty(len(scores))
    shares[order] = (below + not_above) / (2 * len(others))
    return shares


def _variance_of_mean(placements: Float[np.ndarray, " n"]) -> float:
    # Equal placements are equal to the last bit, but np.var of them need not be zero.
    if np.ptp(placements) == 0:
        return 0.0
    return float(placements.var(ddof=1)) / len(placements)


def _covariance_of_means(
    a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]
) -> float:
    if len(a) == 1:
        return 0.0
    return float((a - a.mean()) @ (b - b.mean())) / (len(a) - 1) / len(a)


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
    """Return the true-positive rate at a false-positive rate of at most ``fpr``, in (0, 1).

    The threshold is the smallest score at which at most ``fpr`` of the non-members are
    called members; ties count as calls. Half of the error goes to choosing it on these
    non-members (where the true quantile may lie, by order statistics), half to counting
    members (Clopper-Pearson): so the interval holds for every curve. At a threshold
    taken as given Clopper-Pearson covers 52-92 %.

    With fewer non-members than ``10 / fpr`` the estimate is unresolved. Clusters make both
    errors those of the effective numbers of records.

    Example:
        >>> print(tpr_at_fpr(np.array([60.0, 95.0]), np.arange(100.0), fpr=0.1))
        0.500 [0.000, 0.994], n = 2 + 100
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
    sizes = effective_sizes(members, others, fpr, clusters)
    if sizes[1] < needed:
        reason = needs(needed, "non-members", int(sizes[1]))
        return unresolved(reason, counts, method, confidence)
    ends = rate_with_ends(members, others, fpr, confidence, sizes)
    return Estimate(*ends, counts, method, confidence)


def effective_sizes(
    members: Members, others: Others, fpr: float, clusters: Clusters | None
) -> tuple[float, float]:
    """Return how many independent members and non-members tell as much of a rate."""
    if clusters is None:
        return float(len(members)), float(len(others))
    threshold = np.quantile(others, 1 - fpr)
    pairs = zip((members, others), clusters, strict=True)
    ours, theirs = (effective_count(of > threshold, one) for of, one in pairs)
    return ours, theirs


def rate_with_ends(
    members: Members,
    others: Others,
    fpr: float,
    confidence: float,
    sizes: tuple[float, float],
) -> tuple[float, float, float]:
    """Return the rate of :func:`tpr_at_fpr`, and its ends at any number of non-members."""
    half = (1 + confidence) / 2
    thresholds = _thresholds(others, fpr, half, max(1, int(sizes[1])))
    called = np.array([float((members > t).sum()) for t in thresholds])
    shown = called * (sizes[0] / len(members))
    floor, ceiling = clopper_pearson(shown, sizes[0], half)
    return float(called[0]) / len(members), float(floor[1]), float(ceiling[2])


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

    No score is NaN. Importing scipy.stats takes longer than most audits spend on statistics.

    Example:
        >>> mean_ranks(np.array([3.0, 1.0, 3.0]))
        array([2.5, 1. , 2.5])
    """
    _, of, ties = np.unique(scores, return_inverse=True, return_counts=True)
    return (ties.cumsum() - (ties - 1) / 2)[of.reshape(-1)]


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
    ``fpr`` is in (0, 1).

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
    """Both rates, non-decreasing, at every threshold from (0, 0) to (1, 1), all kept."""

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
        0.500 [0.000, 0.953], n = 4 + 100
    """
    if not groups:
        raise ConfigError("There are no seeds to pool. Add runs.")
    members = np.concatenate([members for members, _ in groups])
    others = np.concatenate([others for _, others in groups])
    pooled = tpr_at_fpr(members, others, fpr)
    shared = np.sort(others)[::-1][int(np.floor(len(others) * fpr + 1e-9))]
    rates = [float((scores > shared).mean()) for scores, _ in groups if len(scores)]
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


Truth = Bool[np.ndarray, " candidates"]
Guesses = Bool[np.ndarray, " guesses"]  # the adversary's, in the order of the truth
ClusterNumbers = Int[np.ndarray, " clusters"]

_RIGHT = "share of right guesses, Clopper-Pearson"
_RIGHT_BY_CLASS = (
    "share of right guesses averaged over {classes} classes, Korn-Graubard"
)


def success_rate(
    is_member: Truth,
    guesses: Guesses,
    confidence: float = 0.95,
    clusters: ClusterNumbers | None = None,
) -> Estimate:
    """Return the share of right guesses, 0.5 by chance on a fair membership coin.

    The interval covers at least ``confidence``. With clusters it is Clopper-Pearson's at
    their effective number.

    Example:
        >>> truth = np.array([True, True, False, False])
        >>> print(success_rate(truth, np.array([True, True, True, False])))
        0.750 [0.194, 0.994], n = 4
    """
    _check_lengths(is_member, guesses)
    correct = is_member == guesses
    estimate = proportion(int(correct.sum()), len(is_member), confidence)
    if clusters is None:
        return replace(estimate, method=_RIGHT)
    size = effective_count(correct, clusters)
    low, high = clopper_pearson(np.array([estimate.value * size]), size, confidence)
    method = f"{_RIGHT} at the effective number"
    return replace(estimate, low=float(low[0]), high=float(high[0]), method=method)


def class_averaged_success(
    is_member: Truth,
    guesses: Guesses,
    labels: Shaped[np.ndarray, " labels"],
    clusters: ClusterNumbers | None = None,
) -> Estimate:
    """Return the share of right guesses within each class, averaged over the classes.

    Every class that occurs counts the same. The interval is Clopper-Pearson's at the
    effective number of candidates, that which gives one proportion the stratified
    variance; with one class it is the plain interval. It covers 95 % or more at 1 to 50
    candidates per class, where a normal one falls to 25-94 %.

    Source: the average: DP-FPL, appendix A.3; the interval: Korn and Graubard,
    "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24, 1998. Here each class's rate is
    shrunk by the rule of succession, and their adjustment for degrees of freedom left
    out.
    """
    _check_lengths(is_member, guesses, labels)
    _, of_class, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    right = np.bincount(of_class, weights=is_member == guesses)
    value, classes = float((right / sizes).mean()), len(sizes)
    shrunk = (right + 1) / (sizes + 2)
    variance = (shrunk * (1 - shrunk) / sizes).sum() / classes**2
    spread = shrunk.mean() * (1 - shrunk.mean())
    effective = float(min(spread / variance, classes**2 / (1 / sizes).sum()))
    if clusters is not None:
        influence = ((is_member == guesses) - (right / sizes)[of_class]) / sizes[
            of_class
        ]
        effective *= effective_count(influence, clusters) / len(labels)
    low, high = clopper_pearson(np.array([value * effective]), effective, 0.95)
    method = _RIGHT_BY_CLASS.format(classes=classes)
    return Estimate(value, float(low[0]), float(high[0]), (len(labels),), method)


def advantage(
    is_member: Truth, guesses: Guesses, clusters: ClusterNumbers | None = None
) -> Estimate:
    """Return the true-positive rate less the false-positive rate, 0 by chance.

    Where nothing leaks, chance puts the whole interval above 0 in 2 % of draws on
    average, and at worst in 3 % at 5 + 5 to 100 + 100 candidates, 5 % at 10 + 100 and
    7 % at 5 + 100 (exact, over true-positive rates of 1 to 99 %). It is shown beside
    the AUROC, which decides.
    """
    _check_lengths(is_member, guesses)
    hits, alarms = guesses[is_member], guesses[~is_member]
    estimate = two_proportions(
        int(hits.sum()), len(hits), int(alarms.sum()), len(alarms)
    )
    if clusters is not None:
        influence = np.zeros(len(guesses))
        for kind, sign in ((is_member, 1.0), (~is_member, -1.0)):
            influence[kind] = sign * (guesses[kind] - guesses[kind].mean()) / kind.sum()
        wider = (len(guesses) / effective_count(influence, clusters)) ** 0.5
        low = estimate.value - wider * (estimate.value - estimate.low)
        high = estimate.value + wider * (estimate.high - estimate.value)
        estimate = replace(estimate, low=max(low, -1.0), high=min(high, 1.0))
    return replace(estimate, method="TPR - FPR, Newcombe's hybrid score")


def _check_lengths(is_member: Truth, *others: Shaped[np.ndarray, " _"]) -> None:
    lengths = [len(is_member), *(len(other) for other in others)]
    if not all(lengths) or len(set(lengths)) > 1:
        raise ConfigError(
            "A success rate needs one guess (and one label) for each of at least one "
            f"candidate, and their numbers are {lengths}. Align them."
        )


_TILTED = "AUROC, exponentially tilted samples and DeLong on the logit scale"
_TIES = "{ties} of {n} scores tie"
_CLUSTERS = "by {n} clusters, Obuchowski"
_POOLED = "AUROC averaged over {n} clients by pairs"
LEFT_OUT = "{n} left out, without members or non-members"
_STRATIFIED = "exponentially tilted samples and stratified DeLong on the logit scale"


def auroc(
    member_scores: AnyScores,
    nonmember_scores: AnyScores,
    confidence: float = 0.95,
    clusters: Clusters | None = None,
) -> Estimate:
    """Return the chance that a member outscores a non-member, ties counting one half.

    ``method`` says how many scores tie. For the interval see :func:`auroc_interval`.

    Example:
        >>> print(auroc(np.array([3.0, 2.0, 0.0]), np.array([1.0, 0.0])))
        0.750 [0.225, 0.979], n = 3 + 2
    """
    placements = delong_components(member_scores, nonmember_scores, clusters=clusters)
    low, high = auroc_interval(placements.value, [placements], confidence)
    counts = len(member_scores), len(nonmember_scores)
    ties = tied(np.concatenate([member_scores, nonmember_scores]))
    method = _TILTED + (f"; {_TIES.format(ties=ties, n=sum(counts))}" if ties else "")
    if clusters is not None:
        method += f"; {_CLUSTERS.format(n=placements.independent)}"
    return Estimate(placements.value, low, high, counts, method, confidence)


def sign_turned(auroc: Estimate) -> Estimate:
    """Return the AUROC of the same scores with their sign turned.

    Example:
        >>> print(sign_turned(Estimate(0.1, 0.05, 0.3, (40, 40), "AUROC")))
        0.900 [0.700, 0.950], n = 40 + 40
    """
    return replace(auroc, value=1 - auroc.value, low=1 - auroc.high, high=1 - auroc.low)


def leaks_over_seeds(aurocs: Sequence[float]) -> tuple[list[float], bool]:
    """Return AUROCs of a setting's seeds, and whether their sign was turned.

    It is if their mean is below 0.5 by more than chance: else a setting whose members
    have the lower scores would pass for one that leaks less.

    Example:
        >>> leaks_over_seeds([0.25, 0.125, 0.25])
        ([0.75, 0.875, 0.75], True)
    """
    turned = mean_with_t(aurocs).high < 0.5
    return [1 - value if turned else value for value in aurocs], turned


def pooled_auroc(
    groups: Sequence[tuple[Shaped[np.ndarray, " _"], Shaped[np.ndarray, " _"]]],
    population: Literal["these", "new"] = "these",
    confidence: float = 0.95,
    clusters: Sequence[Clusters | None] | None = None,
    *,
    is_tested: bool = False,
) -> Estimate:
    """Return the mean of per-client AUROCs, weighted by their number of pairs.

    Clients without a member or without a non-member are left out, and ``method`` says
    how many. For the interval see :func:`auroc_interval`.

    Args:
        groups: Per client its members' and its non-members' scores.
        population: "these": the interval is for other records of the same clients, and
            ``n`` counts members and non-members. "new": it is for other clients, the
            client is the replicate, and ``n`` counts clients.
        confidence: Of the interval, between 0 and 1.
        clusters: Per client those of members and of non-members; None where none are.
        is_tested: As :func:`auroc_interval` has it.

    Raises:
        TooFewRecordsError: No client has members and non-members.

    Example:
        >>> alice = np.array([2.0, 0.0]), np.array([1.0])
        >>> bob = np.array([2.0]), np.array([1.0, 3.0])
        >>> print(pooled_auroc([alice, bob]))
        0.500 [0.059, 0.941], n = 3 + 3
    """
    check_confidence(confidence)
    clients = [
        delong_components(members, others, clusters=alike)
        for (members, others), alike in zip(
            groups, clusters or [None] * len(groups), strict=True
        )
        if len(members) and len(others)
    ]
    recurring = _recurring(clients)
    if recurring > 0:  # each record once in a client: there all are independent
        clients = [replace(client, clusters=None) for client in clients]
    if not clients:
        raise TooFewRecordsError(
            f"None of {len(groups)} clients has both members and non-members. "
            "Give the clients more candidates."
        )
    left_out = len(groups) - len(clients)
    note = f"; {LEFT_OUT.format(n=left_out)}" if left_out else ""
    method = f"{_POOLED.format(n=len(clients))}{note}; "
    if population == "new":
        return _pool_new(clients, method, confidence)
    return _pool_these(clients, method, confidence, is_tested, recurring)


def _recurring(clients: Sequence[Placements]) -> float:
    """Return by what records that recur, each once in a client, lengthen the variance.

    That is the sum over records of what each adds in all clients, squared, beside that of
    what it adds in each: at least 1, as what recurs may cancel by chance. 0 where
    clusters lie within clients, whose own variances know them, or there are none.
    """
    alike = [np.concatenate(c.clusters) for c in clients if c.clusters is not None]
    within = sum(len(np.unique(one)) for one in alike)
    if not alike or len(alike) < len(clients) or within < sum(map(len, alike)):
        return 0.0
    names, record = np.unique(np.concatenate(alike), return_inverse=True)
    if len(names) == within:
        return 0.0
    added = [
        weight * (placed - one.value) / len(placed)
        for weight, one in zip(_weights(clients), clients, strict=True)
        for placed in (one.members, one.nonmembers)
    ]
    each = np.concatenate(added)
    sums, alone = np.bincount(record, each), float(each @ each)
    return max(1.0, float(sums @ sums) / alone) if alone else 1.0


def _pool_these(
    clients: Sequence[Placements],
    method: str,
    confidence: float,
    is_tested: bool = False,
    recurring: float = 0.0,
) -> Estimate:
    """Return the stratified interval.

    Where all clients are at 1, all their disjoint pairs fell the same way, which has a
    chance of Π θ^count <= (Σ weight θ)^min(count / weight) by the inequality of means.
    """
    value = _weighted_mean(clients)
    low, high = auroc_interval(
        value,
        clients,
        confidence,
        is_tested=is_tested,
        design_effect=max(recurring, 1.0),
    )
    n = (
        sum(len(client.members) for client in clients),
        sum(len(client.nonmembers) for client in clients),
    )
    how = method + _STRATIFIED
    if any(client.clusters is not None for client in clients):
        count = sum(client.independent for client in clients)
        how += f"; {_CLUSTERS.format(n=count)}"
    return Estimate(value, low, high, n, how, confidence)


def _pool_new(
    clients: Sequence[Placements], method: str, confidence: float
) -> Estimate:
    """Return Student's interval over clients.

    Equal weights give the textbook's. For unequal ones its variance is the jackknife's
    and its degrees of freedom are Kish's effective number of clients less one: with the
    plain variance and K - 1, five clients of 4 to 60 candidates cover 88 % in place of
    95 %; so they cover 96 %.
    """
    weights, value = _weights(clients), _weighted_mean(clients)
    values, count = np.array([client.value for client in clients]), len(clients)
    if count == 1:
        return unresolved(needs(2, "clients", 1), (1,), method, confidence, value)
    shifts = weights / (1 - weights) * (values - value)
    error = np.sqrt((count - 1) / count * (shifts @ shifts))
    if error == 0:
        these = _pool_these(clients, f"{method}equal in all; ", confidence)
        return replace(these, n=(count,))
    freedom = float(1 / (weights @ weights) - 1)
    half = float(stdtrit(freedom, (1 + confidence) / 2) * error)
    how = f"{method}jackknife over clients" + STUDENT.format(freedom=f"{freedom:.3g}")
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    return Estimate(value, low, high, (count,), how, confidence)


def _weights(clients: Sequence[Placements]) -> Float[np.ndarray, " clients"]:
    pairs = np.array([client.pairs for client in clients], np.float64)
    return pairs / pairs.sum()


def _weighted_mean(clients: Sequence[Placements]) -> float:
    # Divided last, so that 1 everywhere gives 1 to the last bit.
    total = sum(client.pairs for client in clients)
    return sum(client.pairs * client.value for client in clients) / total
