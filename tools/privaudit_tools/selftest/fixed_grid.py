"""Bounds on epsilon from many runs at thresholds that were fixed before any was seen."""

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.statistics.epsilon.bound import (
    AuditBounds,
    AuditCoins,
    AuditScores,
    ManyRunsMethod,
)
from privaudit.statistics.epsilon.many_runs import (
    ceiling_from_errors,
    epsilon_from_errors,
    errors_at,
)

Grid = Annotated[tuple[float, ...], Field(min_length=1)]


@options(frozen=True, kw_only=True)
class FixedGrid(ManyRunsMethod):
    """The best of several thresholds' bounds, corrected for their number.

    Each threshold's bound is Clopper-Pearson's at its share of the significance
    (Bonferroni), whether or not the threshold is of use. A grid made of the same scores
    (each score, the corners of their ROC curve) is not fixed, and its size corrects for
    nothing; take quantiles of other runs' scores, or a threshold by split.

    Attributes:
        thresholds: Fixed before the scores were seen.

    Example:
        >>> FixedGrid(thresholds=(0.0,)).ceiling(50, 50)
        2.569...
    """

    thresholds: Grid

    @property
    def method(self) -> str:
        """How the bound is found, in words, with the size of the grid."""
        count = len(self.thresholds)
        if count == 1:
            return "Clopper-Pearson, one threshold fixed in advance"
        return f"Clopper-Pearson, Bonferroni over {count} thresholds fixed in advance"

    def values(self, scores: AuditScores, is_member: AuditCoins) -> AuditBounds:
        """Return each audit's bound, at least 0."""
        grid = np.broadcast_to(self.thresholds, (len(scores), len(self.thresholds)))
        everyone = np.ones_like(is_member)
        misses, alarms = errors_at(grid, scores, is_member, everyone)
        epsilon = epsilon_from_errors(
            misses,
            alarms,
            is_member.sum(1),
            (~is_member).sum(1),
            significance=self.significance / len(self.thresholds),
            delta=self.delta,
        )
        return np.maximum(epsilon.max(1), 0.0)

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the bound if one of the thresholds made no error."""
        share = self.significance / len(self.thresholds)
        return ceiling_from_errors(members, nonmembers, share, self.delta)
