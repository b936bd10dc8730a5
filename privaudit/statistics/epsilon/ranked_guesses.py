"""One run: guesses at the canaries by rank, how many of them fixed in advance."""

from abc import abstractmethod
from typing import Annotated

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.errors import ConfigError
from privaudit.statistics.epsilon.bound import OneRunMethod


@options(frozen=True, kw_only=True)
class RankedGuesses(OneRunMethod):
    """What bounds from one run share: guess at the extremes, abstain between.

    The numbers of guesses are fixed before the scores are seen; the best of several is
    no bound. Canaries with equal scores are ranked by a fixed shuffle, so that the
    order in which they are given cannot help.

    Attributes:
        guesses_in: The highest scores, guessed to be in.
        guesses_out: The lowest scores, guessed to be out.
        tie_seed: Of the shuffle.
    """

    guesses_in: Annotated[int, Field(ge=0)]
    guesses_out: Annotated[int, Field(ge=0)]
    tie_seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        if not self.guesses:
            raise ConfigError(
                "A bound from one run needs guesses, and guesses_in and guesses_out "
                "are 0. Fix how many of the extreme scores to guess at."
            )

    @property
    def guesses(self) -> int:
        """How many guesses there are in all."""
        return self.guesses_in + self.guesses_out

    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
        """Return each audit's bound, at least 0."""
        counts, back = np.unique(self.correct(scores, is_member), return_inverse=True)
        return self.epsilon_of(counts, scores.shape[1])[back]

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the bound if every guess was right."""
        self._check(members + nonmembers)
        best = self.epsilon_of(np.array([self.guesses]), members + nonmembers)
        return float(best[0])

    @abstractmethod
    def epsilon_of(
        self, correct: Int[np.ndarray, " counts"], canaries: int
    ) -> Float[np.ndarray, " counts"]:
        """Return the bound for each number of right guesses."""

    def correct(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Int[np.ndarray, " audits"]:
        """Return how many guesses are right.

        Raises:
            ConfigError: There are fewer canaries than guesses.
        """
        canaries = scores.shape[1]
        self._check(canaries)
        shuffle = np.random.default_rng(self.tie_seed).permutation(canaries)
        order = np.argsort(scores[:, shuffle], axis=1, kind="stable")
        truth = np.take_along_axis(is_member[:, shuffle], order, axis=1)
        right_in = truth[:, canaries - self.guesses_in :].sum(1)
        right_out = (~truth[:, : self.guesses_out]).sum(1)
        return right_in + right_out

    def _check(self, canaries: int) -> None:
        if canaries < self.guesses:
            raise ConfigError(
                f"{self.guesses} guesses need as many canaries, and there are "
                f"{canaries}. Insert more, or guess fewer."
            )
