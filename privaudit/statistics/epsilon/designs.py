"""Where canary scores come from: many independent runs, or one run.

Clopper-Pearson needs independent trials, which the canaries of one run are not, and the
one-run bounds need all coins of one run. So each design has a type, and a bound takes
one of them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Shaped

from privaudit.core.errors import ConfigError

Design = Literal["many runs", "one run"]
Adjacency = Literal["add/remove-one", "replace-one"]


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """Scores of canaries, each in or out by its own fair coin; use a subclass.

    Attributes:
        scores: Finite; higher means more likely in. The direction is fixed beforehand.
        is_member: How each coin fell. A balanced split is no coin: with it the bounds
            do not hold.
        adjacency: What a coin decides: whether the canary is there, or which of two
            records is.
        unit: What one canary stands for, as the claim calls it.

    Raises:
        ConfigError: There are no canaries, a score is not finite, or the lengths
            differ.
    """

    design: ClassVar[Design]
    counted: ClassVar[str]

    scores: Shaped[np.ndarray, " canaries"]
    is_member: Bool[np.ndarray, " coins"]
    adjacency: Adjacency = "add/remove-one"
    unit: str = "record"

    def __post_init__(self) -> None:
        lengths = len(self.scores), len(self.is_member)
        if not lengths[0] or lengths[0] != lengths[1]:
            raise ConfigError(
                "An epsilon bound needs one coin for each of at least one score, and "
                f"there are {lengths[0]} scores and {lengths[1]} coins. Align them."
            )
        broken = int((~np.isfinite(self.scores)).sum())
        if broken:
            raise ConfigError(
                f"An epsilon bound needs finite scores, and {broken} of {lengths[0]} "
                "are not. Leaving some out would bias it: fix the attack."
            )

    @property
    def members(self) -> int:
        """How many canaries were in."""
        return int(self.is_member.sum())

    @property
    def nonmembers(self) -> int:
        """How many canaries were out."""
        return len(self.is_member) - self.members


@dataclass(frozen=True, eq=False)
class IndependentRuns(CanaryScores):
    """One score per training run: each run had one canary, in or out by a coin.

    Runs share no randomness, and a score comes from its own run and from what was fixed
    before all of them, not from the other runs.
    """

    design: ClassVar[Design] = "many runs"
    counted: ClassVar[str] = "runs"


@dataclass(frozen=True, eq=False)
class OneRunCanaries(CanaryScores):
    """One score per canary of a single training run, in or out by independent coins."""

    design: ClassVar[Design] = "one run"
    counted: ClassVar[str] = "canaries of one run"


def require_design(scores: CanaryScores, design: Design, bound: str) -> None:
    """Raise ConfigError unless the scores are of the design that the bound is for."""
    if scores.design != design:
        remedy = {
            "many runs": "A bound for one run is OneRunGuesses.",
            "one run": "A bound for many runs is SplitThreshold.",
        }[design]
        raise ConfigError(
            f"{bound} bounds epsilon from {design}, and the scores are of "
            f"{len(scores.scores)} {scores.counted}. It does not hold there. {remedy}"
        )
