"""Many runs: the best of a grid of thresholds that was fixed before looking."""

from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import ndtr, ndtri

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.bound import ManyRunsMethod
from privaudit.statistics.epsilon.error_rates import (
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
    nothing; use :func:`grid_from_scores` on other runs, or
    :class:`privaudit.statistics.epsilon.split_threshold.SplitThreshold`.

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

    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
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


def grid_from_scores(
    calibration: Shaped[np.ndarray, " scores"], points: int
) -> tuple[float, ...]:
    """Return a grid of scores at levels that lie evenly on the normal scale.

    That is denser in the tails, where high epsilons are decided, than even levels. A
    strictly increasing transform of all scores transforms the grid alike.

    Args:
        calibration: Scores of runs that are not audited, or of shadows; at least one.
        points: Thresholds, at least 1; equal ones are merged.

    Raises:
        ConfigError: There are no scores or points.

    Example:
        >>> grid_from_scores(np.arange(100.0), 3)
        (0.0, 49.0, 99.0)
    """
    if not len(calibration) or points < 1:
        raise ConfigError(
            f"A grid needs points and scores to take them from, and there are {points} "
            f"points and {len(calibration)} scores. Give at least one of each."
        )
    reach = ndtri(1 / (len(calibration) + 1))
    normal = np.linspace(reach, -reach, points) if points > 1 else np.zeros(1)
    levels = ndtr(normal)
    return tuple(
        np.unique(np.quantile(calibration, levels, method="inverted_cdf")).tolist()
    )
