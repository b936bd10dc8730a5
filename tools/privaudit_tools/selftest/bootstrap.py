"""Intervals by resampling members and non-members, each class for itself.

A resample of sorted scores is how often each score was drawn, and an AUROC or a rate is
a sum over running totals of those counts: no resample is ever sorted. Counts are whole
numbers, so that each replicate is the resample's own figure to the last bit.

Source: Efron, "Better bootstrap confidence intervals", JASA 82, 1987; several samples:
Davison and Hinkley, "Bootstrap methods and their application", 1997, section 5.3.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy.special import ndtr, ndtri

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate, check_confidence
from privaudit.statistics.roc import (
    Clusters,
    Placements,
    checked_scores,
    delong_components,
)

MemberScores = Shaped[np.ndarray, " members"]
NonmemberScores = Shaped[np.ndarray, " nonmembers"]
MemberCounts = Int[np.ndarray, "replicates members"]
NonmemberCounts = Int[np.ndarray, "replicates nonmembers"]
Replicates = Float[np.ndarray, " replicates"]
Interval = Literal["percentile", "bca"]

_AT_A_TIME = 2**18  # counts held at once: they stay in the cache
_FEWEST = 100  # replicates: fewer have no 2.5 % to speak of


@dataclass(frozen=True)
class Resampling:
    """What all resamples of two classes share: sorted scores and their ranks.

    Attributes:
        members: Sorted.
        others: The non-members, sorted.
        clusters: Numbers from 0 on that resembling records share, in these orders: they
            are then drawn together. None where each record is drawn for itself.
    """

    members: Float[np.ndarray, " members"]
    others: Float[np.ndarray, " nonmembers"]
    clusters: Clusters | None = None

    @classmethod
    def of(
        cls,
        member_scores: MemberScores,
        nonmember_scores: NonmemberScores,
        clusters: Clusters | None = None,
    ) -> "Resampling":
        """Return the resampling of two classes.

        Raises:
            ConfigError: A class is empty, or a score is not finite.
        """
        members, others = checked_scores(member_scores, nonmember_scores)
        if clusters is None:
            return cls(np.sort(members), np.sort(others))
        _, number = np.unique(np.concatenate(clusters), return_inverse=True)
        orders = np.argsort(members), np.argsort(others)
        parts = number[: len(members)][orders[0]], number[len(members) :][orders[1]]
        return cls(members[orders[0]], others[orders[1]], parts)

    @cached_property
    def _below(self) -> Int[np.ndarray, " members"]:
        return np.searchsorted(self.others, self.members, "left")

    @cached_property
    def _not_above(self) -> Int[np.ndarray, " members"]:
        return np.searchsorted(self.others, self.members, "right")

    def aurocs(self, members: MemberCounts, others: NonmemberCounts) -> Replicates:
        """Return the AUROC of each resample.

        Args:
            members: How often each member, in order of scores, was drawn; at least one.
            others: Likewise the non-members.
        """
        totals = _running(others)
        twice = totals[:, self._below]
        twice += totals[:, self._not_above]  # ties count one half
        wins = np.einsum("rm,rm->r", members, twice)
        return wins / (2 * members.sum(axis=1) * others.sum(axis=1))

    def draws(
        self, rng: np.random.Generator, replicates: int
    ) -> Iterator[tuple[MemberCounts, NonmemberCounts]]:
        """Yield counts of resamples, a few at a time so that memory stays flat."""
        sizes = len(self.members), len(self.others)
        step = max(1, _AT_A_TIME // sum(sizes))
        for start in range(0, replicates, step):
            rows = min(step, replicates - start)
            if self.clusters is not None:
                yield self._by_cluster(rng, rows, self.clusters)
                continue
            yield _counts(rng, rows, sizes[0]), _counts(rng, rows, sizes[1])

    def _by_cluster(
        self, rng: np.random.Generator, rows: int, clusters: Clusters
    ) -> tuple[MemberCounts, NonmemberCounts]:
        """Return resamples of clusters; one without a class is drawn again."""
        count = 1 + max(int(one.max()) for one in clusters)
        drawn = _counts(rng, rows, count)
        while True:
            parts = drawn[:, clusters[0]], drawn[:, clusters[1]]
            lacking = (parts[0].sum(axis=1) == 0) | (parts[1].sum(axis=1) == 0)
            if not lacking.any():
                return parts
            drawn[lacking] = _counts(rng, int(lacking.sum()), count)


def _counts(
    rng: np.random.Generator, rows: int, size: int
) -> Int[np.ndarray, "rows size"]:
    drawn = rng.integers(size, size=(rows, size))
    drawn += size * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)


def _running(counts: Int[np.ndarray, "rows n"]) -> Int[np.ndarray, "rows n+1"]:
    """Return how many were drawn before each place, and in all."""
    totals = np.zeros((len(counts), counts.shape[1] + 1), np.int64)
    np.cumsum(counts, axis=1, out=totals[:, 1:])
    return totals


def bootstrap_auroc(
    member_scores: MemberScores,
    nonmember_scores: NonmemberScores,
    rng: np.random.Generator,
    *,
    replicates: int = 1000,
    confidence: float = 0.95,
    interval: Interval = "bca",
    clusters: Clusters | None = None,
) -> Estimate:
    """Return the AUROC with a bootstrap interval, members and non-members apart.

    Where an AUROC is 0 or 1 so is every resample's, and the interval is the exact one:
    pairs that share no record are independent tosses, and all of them fell the same way,
    so the chance of that way is at least (alpha/2)^(1/pairs). A class whose scores all
    tie is constant in every resample: with ties or few records of a class prefer
    :func:`privaudit.statistics.roc.auroc`.

    Args:
        member_scores: At least one, finite; higher means more likely a member.
        nonmember_scores: At least one, finite; the same model's scores.
        rng: Of the resamples.
        replicates: How many resamples, at least 100.
        confidence: Nominal coverage, in (0, 1).
        interval: "bca" corrects the percentiles for bias and skew.
        clusters: Which records resemble one another, by numbers that they share: whole
            clusters are then drawn, with members and non-members in them.

    Raises:
        ConfigError: A class is empty, a score is not finite, or the replicates are few.
    """
    check_confidence(confidence)
    if replicates < _FEWEST:
        raise ConfigError(
            f"{replicates} bootstrap replicates have no tails to read an interval "
            f"from. Use at least {_FEWEST}, or 1000."
        )
    placements = delong_components(member_scores, nonmember_scores, clusters=clusters)
    value, counts = placements.value, (len(member_scores), len(nonmember_scores))
    if value in (0.0, 1.0):
        low = ((1 - confidence) / 2) ** (1 / placements.disjoint_pairs)
        low, high = (low, 1.0) if value else (0.0, 1 - low)
        return Estimate(value, low, high, counts, "AUROC, exact", confidence)
    resampling = Resampling.of(member_scores, nonmember_scores, clusters)
    draws = resampling.draws(rng, replicates)
    aurocs = np.concatenate([resampling.aurocs(*counts) for counts in draws])
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if interval == "bca":
        skew = _acceleration(placements)
        tails = _corrected(tails, _bias(aurocs, value), skew)
    low, high = np.quantile(aurocs, tails)
    kind = "stratified resamples" if clusters is None else "resamples of clusters"
    method = f"AUROC, {interval} bootstrap of {replicates} {kind}"
    ends = min(float(low), value), max(float(high), value)
    return Estimate(value, *ends, counts, method, confidence)


def _bias(found: Replicates, value: float) -> float:
    """Return how far the replicates' median lies off, in standard deviations."""
    below = (found < value).mean() + (found == value).mean() / 2
    smallest = 1 / (len(found) + 1)
    return float(ndtri(np.clip(below, smallest, 1 - smallest)))


def _acceleration(placed: Placements) -> float:
    """Return how the error changes with the AUROC, from the placements' skew."""
    cubes = squares = 0.0
    shares = [(p - p.mean()) / len(p) for p in (placed.members, placed.nonmembers)]
    if placed.clusters is not None:
        _, number = np.unique(np.concatenate(placed.clusters), return_inverse=True)
        shares = [np.bincount(number, np.concatenate(shares))]
    for influence in shares:
        cubes += float((influence**3).sum())
        squares += float((influence**2).sum())
    return cubes / (6 * squares**1.5) if squares > 0 else 0.0


def _corrected(
    tails: Float[np.ndarray, " 2"], bias: float, skew: float
) -> Float[np.ndarray, " 2"]:
    shifted = bias + ndtri(tails)
    # With few records the skew may outgrow the formula: then the last replicate.
    return ndtr(bias + shifted / np.maximum(1 - skew * shifted, 1e-3))
