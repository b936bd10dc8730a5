"""Lower bounds on epsilon: the scores they are made of, and what every bound has in common.

Clopper-Pearson needs independent trials, which the canaries of one run are not, and the
one-run bounds need all coins of one run. So each design has a type, and a bound takes
one of them. A strategy fills in :class:`EpsilonMethod`: those for many runs are in
:mod:`privaudit.statistics.epsilon.many_runs`, those for one run in
:mod:`privaudit.statistics.epsilon.one_run`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.core.errors import ConfigError
from privaudit.core.registry import Registry
from privaudit.statistics.estimate import check_confidence

Design = Literal["many runs", "one run"]
Adjacency = Literal["add/remove-one", "replace-one"]
AuditScores = Shaped[np.ndarray, "audits canaries"]
AuditCoins = Bool[np.ndarray, "audits canaries"]
AuditBounds = Float[np.ndarray, " audits"]


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


@dataclass(frozen=True)
class EpsilonBound:
    """What an audit shows about epsilon: with confidence, it is at least ``value``.

    That is, the mechanism is not (epsilon, ``delta``)-DP for any epsilon below it.

    Attributes:
        value: At least 0, which says nothing.
        confidence: The chance, at the least, that ``value`` is no more than the truth.
        delta: At which epsilon is meant, in [0, 1).
        ceiling: The most that this bound could have shown with as many: perfect scores.
        method: How the bound was found, in words.
        can_refute: Whether it holds for every mechanism. One that assumes the form of
            the noise informs, and refutes nothing.
        adjacency: What the coin decided about a canary.
        unit: What one canary stands for.

    Raises:
        ConfigError: The value lies below 0 or beyond the ceiling.
    """

    value: float
    confidence: float
    delta: float
    n: tuple[int, int]
    ceiling: float
    design: Design
    method: str
    can_refute: bool
    adjacency: Adjacency = "add/remove-one"
    unit: str = "record"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        if not 0 <= self.value <= self.ceiling < math.inf:
            raise ConfigError(
                f"A bound of {self.value} has the ceiling {self.ceiling}. A bound lies "
                "between 0 and what perfect scores would give."
            )

    def __str__(self) -> str:
        percent = f"{100 * self.confidence:.4g} %"
        note = "" if self.can_refute else "; informative, cannot refute"
        return (
            f"epsilon >= {self.value:.2f} at {percent} (ceiling {self.ceiling:.2f}), "
            f"delta = {self.delta:g}, n = {self.n[0]} + {self.n[1]}, {self.design}, "
            f"{self.method}{note}"
        )


@options(frozen=True, kw_only=True)
class EpsilonMethod(ABC):
    """A way to a bound, with all that must be fixed before the scores are seen.

    Attributes:
        confidence: Of the bound, in (0, 1).
        delta: At which epsilon is meant, in [0, 1).
    """

    design: ClassVar[Design]
    can_refute: ClassVar[bool] = True

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def significance(self) -> float:
        """The chance of a bound beyond the truth, at the most."""
        return 1 - self.confidence

    @property
    @abstractmethod
    def method(self) -> str:
        """How the bound is found, in words, with what was fixed beforehand."""

    @abstractmethod
    def values(self, scores: AuditScores, is_member: AuditCoins) -> AuditBounds:
        """Return the bounds of many audits at once, for simulations; each at least 0.

        Nobody can tell here which design the scores are of.
        """

    @abstractmethod
    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the bound that perfect scores would give."""

    def _bound(self, scores: CanaryScores) -> EpsilonBound:
        require_design(scores, self.design, type(self).__name__)
        value = float(self.values(scores.scores[None], scores.is_member[None])[0])
        n = scores.members, scores.nonmembers
        ceiling = self.ceiling(*n)
        return EpsilonBound(
            value=min(value, ceiling),  # perfect scores: they differ by rounding
            confidence=self.confidence,
            delta=self.delta,
            n=n,
            ceiling=ceiling,
            design=self.design,
            method=self.method,
            can_refute=self.can_refute,
            adjacency=scores.adjacency,
            unit=scores.unit,
        )


class ManyRunsMethod(EpsilonMethod):
    """A way to a bound from independent runs."""

    design: ClassVar[Design] = "many runs"

    def __call__(self, scores: IndependentRuns) -> EpsilonBound:
        """Return the bound; scores of one run are a ConfigError."""
        return self._bound(scores)


class OneRunMethod(EpsilonMethod):
    """A way to a bound from the canaries of one run."""

    design: ClassVar[Design] = "one run"

    def __call__(self, scores: OneRunCanaries) -> EpsilonBound:
        """Return the bound; scores of many runs, or too few, are a ConfigError."""
        return self._bound(scores)


M = TypeVar("M", bound=EpsilonMethod)
BOUNDS: Registry[type[EpsilonMethod]] = Registry(
    "bound on epsilon", "privaudit.statistics.epsilon", "privaudit.bounds"
)
"""Of other packages: what they show informs, whatever they say of themselves."""


def other_bounds(design: type[M], **offered: Any) -> list[M]:
    """Return other packages' ways to a bound for a design, in the order of their names.

    ``design`` is the class that they inherit from. Of the parameters that are offered
    each takes those that are fields of its own.
    """
    kinds = [kind for kind in BOUNDS.usable().values() if issubclass(kind, design)]
    return [
        kind(**{f.name: offered[f.name] for f in fields(kind) if f.name in offered})
        for kind in kinds
    ]


HALVINGS = 44  # of a bracket below 20 leave 1e-12

Test = Callable[[Float[np.ndarray, " tests"]], Bool[np.ndarray, " tests"]]


def largest_rejected(
    rejects: Test, highest: Float[np.ndarray, " tests"]
) -> Float[np.ndarray, " tests"]:
    """Return the end of the rejected values, from below, and 0 where 0 is not rejected.

    Args:
        rejects: Whether each test rejects its value; all up to some value, none above.
        highest: At least 0; no value above is rejected.
    """
    low, high = np.zeros_like(highest), highest
    refuses_zero = rejects(low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rejected = rejects(middle)
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return np.where(refuses_zero, low, 0.0)
