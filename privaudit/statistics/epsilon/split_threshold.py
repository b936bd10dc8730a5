"""Many runs: one half of the runs chooses the threshold, the other bounds epsilon."""

from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.statistics.epsilon.bound import ManyRunsMethod
from privaudit.statistics.epsilon.error_rates import (
    ceiling_from_errors,
    epsilon_from_errors,
    errors_at,
)


@options(frozen=True, kw_only=True)
class SplitThreshold(ManyRunsMethod):
    """Clopper-Pearson bounds at a threshold that other runs chose.

    Members and non-members are halved by themselves, at random; the bounding half has
    the odd one. The chosen threshold is the one at which the choosing half itself would
    show the most.

    Source: Jagielski, Ullman and Oprea, "Auditing differentially private machine
    learning", NeurIPS 2020. Both directions are taken, see
    :func:`privaudit.statistics.epsilon.error_rates.epsilon_from_rates`.

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

    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
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
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
        chooses: Bool[np.ndarray, "audits canaries"],
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


def _every_other(
    is_member: Bool[np.ndarray, "audits canaries"], seed: int
) -> Bool[np.ndarray, "audits canaries"]:
    """Return a random half of the members and one of the non-members, rounded up."""
    order = np.random.default_rng(seed).permutation(is_member.shape[1])
    shuffled = is_member[:, order]
    rank = np.where(shuffled, shuffled.cumsum(1), (~shuffled).cumsum(1))
    halves = np.empty_like(is_member)
    halves[:, order] = rank % 2 == 1
    return halves
