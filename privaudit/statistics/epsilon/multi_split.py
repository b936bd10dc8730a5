"""Many runs: the median of many random splits, so that no bound hangs on one."""

from dataclasses import replace
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.statistics.epsilon.bound import ManyRunsMethod
from privaudit.statistics.epsilon.error_rates import ceiling_from_errors
from privaudit.statistics.epsilon.split_threshold import SplitThreshold


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

    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
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
