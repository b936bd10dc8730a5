"""Bounds on epsilon from many independent runs: wrong guesses at a threshold, counted.

The threshold is chosen on other runs (:class:`SplitThreshold`), or so again and again
(:class:`MultiSplit`).
"""

from dataclasses import replace
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.statistics.epsilon.bound import (
    AuditBounds,
    AuditCoins,
    AuditScores,
    ManyRunsMethod,
)
from privaudit.statistics.estimate import clopper_pearson

TINY = 1e-300


def highest_error_rates(
    errors: Int[np.ndarray, "audits thresholds"],
    trials: Int[np.ndarray, " audits"],
    tail: float,
) -> Float[np.ndarray, "audits thresholds"]:
    """Return upper bounds on error rates, each exceeded with a chance of ``tail``.

    Without a trial the bound is 1.

    Source: Clopper and Pearson, Biometrika 26, 1934, one-sided.
    """
    highest = np.ones(errors.shape)
    for count in np.unique(trials[trials > 0]):
        rows = trials == count
        distinct, back = np.unique(errors[rows], return_inverse=True)
        _, high = clopper_pearson(distinct.astype(float), int(count), 1 - 2 * tail)
        highest[rows] = high[back].reshape(errors[rows].shape)
    return highest


def epsilon_from_rates(
    fpr: Float[np.ndarray, "*rates"], fnr: Float[np.ndarray, "*rates"], delta: float
) -> Float[np.ndarray, "*rates"]:
    """Return the epsilon that error rates no higher than these imply; may be negative.

    (epsilon, delta)-DP has TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR +
    delta. Both directions rest on the same two upper bounds, so that whenever those
    hold both do, and the larger one costs no further share of the error.

    Source: Kairouz, Oh and Viswanath, "The composition theorem for differential
    privacy", ICML 2015: differential privacy as bounds on error rates.
    """
    by_members = np.maximum(1 - fnr - delta, TINY) / fpr
    by_others = np.maximum(1 - fpr - delta, TINY) / fnr
    return np.log(np.maximum(by_members, by_others))


def epsilon_from_errors(
    misses: Int[np.ndarray, "audits thresholds"],
    alarms: Int[np.ndarray, "audits thresholds"],
    members: Int[np.ndarray, " audits"],
    nonmembers: Int[np.ndarray, " audits"],
    *,
    significance: float,
    delta: float,
) -> Float[np.ndarray, "audits thresholds"]:
    """Return each threshold's lower bound on epsilon; may be negative.

    Half of the significance goes to either error rate.

    Args:
        misses: Members below the threshold.
        alarms: Non-members not below it.
        members: Independent runs with the canary.
        nonmembers: Independent runs without it.
        significance: Of each threshold's bound.
        delta: At which epsilon is meant.
    """
    fpr = highest_error_rates(alarms, nonmembers, significance / 2)
    fnr = highest_error_rates(misses, members, significance / 2)
    return epsilon_from_rates(fpr, fnr, delta)


def errors_at(
    thresholds: Float[np.ndarray, "audits thresholds"],
    scores: Shaped[np.ndarray, "audits runs"],
    is_member: Bool[np.ndarray, "audits runs"],
    counted: Bool[np.ndarray, "audits runs"],
) -> tuple[Int[np.ndarray, "audits thresholds"], Int[np.ndarray, "audits thresholds"]]:
    """Return misses and alarms; a score at the threshold is called a member."""
    calls = [scores >= thresholds[:, [j]] for j in range(thresholds.shape[1])]
    misses = [(~called & is_member & counted).sum(1) for called in calls]
    alarms = [(called & ~is_member & counted).sum(1) for called in calls]
    return np.stack(misses, axis=1), np.stack(alarms, axis=1)


def ceiling_from_errors(
    members: int, nonmembers: int, significance: float, delta: float
) -> float:
    """Return the bound without a single error, at least 0."""
    none, trials = np.zeros((1, 1), np.int64), np.array([[members], [nonmembers]])
    epsilon = epsilon_from_errors(
        none, none, *trials, significance=significance, delta=delta
    )
    return max(float(epsilon[0, 0]), 0.0)


@options(frozen=True, kw_only=True)
class SplitThreshold(ManyRunsMethod):
    """Clopper-Pearson bounds at a threshold that other runs chose.

    Members and non-members are halved by themselves, at random; the bounding half has
    the odd one. The chosen threshold is the one at which the choosing half itself would
    show the most.

    Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine
    learning", NeurIPS 2020. Both directions are taken, see :func:`epsilon_from_rates`.

    Attributes:
        split_seed: Which half a run falls into.

    Example:
        >>> SplitThreshold().ceiling(50, 50)
        1.838...
    """

    split_seed: Annotated[int, Field(ge=0)] = 0

    @property
    def method(self) -> str:
        """How the bound is found, in words."""
        return "Clopper-Pearson, threshold by split"

    def values(self, scores: AuditScores, is_member: AuditCoins) -> AuditBounds:
        """Return each audit's bound, at least 0."""
        bounds = _every_other(is_member, self.split_seed)
        thresholds = self._choose(scores, is_member, ~bounds)
        misses, alarms = errors_at(thresholds[:, None], scores, is_member, bounds)
        epsilon = epsilon_from_errors(
            misses,
            alarms,
            (is_member & bounds).sum(1),
            (~is_member & bounds).sum(1),
            significance=self.significance,
            delta=self.delta,
        )
        return np.maximum(epsilon[:, 0], 0.0)

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the bound of a bounding half without an error."""
        return ceiling_from_errors(
            (members + 1) // 2, (nonmembers + 1) // 2, self.significance, self.delta
        )

    def _choose(
        self, scores: AuditScores, is_member: AuditCoins, chooses: AuditCoins
    ) -> Float[np.ndarray, " audits"]:
        # The other half's scores must not even be thresholds: they go to the end.
        falling = np.where(chooses, -scores.astype(np.float64), np.inf)
        order = np.argsort(falling, axis=1)
        falling = np.take_along_axis(falling, order, axis=1)
        hits = np.take_along_axis(is_member & chooses, order, axis=1).cumsum(1)
        alarms = np.take_along_axis(~is_member & chooses, order, axis=1).cumsum(1)
        epsilon = epsilon_from_errors(
            hits[:, [-1]] - hits,
            alarms,
            hits[:, -1],
            alarms[:, -1],
            significance=self.significance,
            delta=self.delta,
        )
        # Equal scores are called together, so counts hold at the last of them.
        last = np.isfinite(falling)
        last[:, :-1] &= falling[:, 1:] > falling[:, :-1]
        best = np.where(last, epsilon, -np.inf).argmax(1)
        return -falling[np.arange(len(best)), best]


def _every_other(is_member: AuditCoins, seed: int) -> AuditCoins:
    """Return a random half of the members and one of the non-members, rounded up."""
    order = np.random.default_rng(seed).permutation(is_member.shape[1])
    shuffled = is_member[:, order]
    rank = np.where(shuffled, shuffled.cumsum(1), (~shuffled).cumsum(1))
    halves = np.empty_like(is_member)
    halves[:, order] = rank % 2 == 1
    return halves


@options(frozen=True, kw_only=True)
class MultiSplit(ManyRunsMethod):
    """The median of bounds by :class:`SplitThreshold`, each at half the significance.

    Twice the median of p-values is one, however they depend on one another: the median
    of the bounds exceeds the truth only where half of the p-values fall below half of
    the significance.

    Source: Meinshausen, Meier and Bühlmann, "P-values for high-dimensional regression",
    JASA 104, 2009, theorem 3.1; jax_privacy takes it for audits.

    Attributes:
        splits: Random halvings. An odd number has one in the middle.
        split_seed: Of the first; the others follow.

    Example:
        >>> MultiSplit().ceiling(50, 50)
        1.652...
    """

    splits: Annotated[int, Field(ge=1)] = 101
    split_seed: Annotated[int, Field(ge=0)] = 0

    @property
    def method(self) -> str:
        """How the bound is found, in words, with the number of splits."""
        return f"Clopper-Pearson, median of {self.splits} thresholds by split"

    def values(self, scores: AuditScores, is_member: AuditCoins) -> AuditBounds:
        """Return each audit's bound, at least 0."""
        single = SplitThreshold(confidence=1 - self.significance / 2, delta=self.delta)
        seeds = range(self.split_seed, self.split_seed + self.splits)
        found = [
            replace(single, split_seed=seed).values(scores, is_member) for seed in seeds
        ]
        return np.asarray(np.median(found, axis=0))

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the bound of bounding halves without an error."""
        return ceiling_from_errors(
            (members + 1) // 2, (nonmembers + 1) // 2, self.significance / 2, self.delta
        )
