"""A lower bound on epsilon, and what every way to one has in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options

from privaudit.core.errors import ConfigError
from privaudit.core.registry import Registry
from privaudit.statistics.epsilon.designs import (
    Adjacency,
    CanaryScores,
    Design,
    IndependentRuns,
    OneRunCanaries,
    require_design,
)
from privaudit.statistics.intervals import check_confidence


@dataclass(frozen=True)
class EpsilonBound:
    """What an audit shows about epsilon: with confidence, it is at least ``value``.

    That is, the mechanism is not (epsilon, ``delta``)-DP for any epsilon below it.

    Attributes:
        value: At least 0, which says nothing.
        confidence: The chance, at the least, that ``value`` is no more than the truth.
        delta: At which epsilon is meant, in [0, 1).
        n: Members and non-members.
        ceiling: The most that this bound could have shown with as many: perfect scores.
        design: Where the scores come from.
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
    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
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
            value=min(
                value, ceiling
            ),  # they differ by rounding where scores are perfect
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
        """Return the bound.

        Raises:
            ConfigError: The scores are of one run.
        """
        return self._bound(scores)


class OneRunMethod(EpsilonMethod):
    """A way to a bound from the canaries of one run."""

    design: ClassVar[Design] = "one run"

    def __call__(self, scores: OneRunCanaries) -> EpsilonBound:
        """Return the bound.

        Raises:
            ConfigError: The scores are of many runs, or of fewer canaries than guesses.
        """
        return self._bound(scores)


M = TypeVar("M", bound=EpsilonMethod)
BOUNDS: Registry[type[EpsilonMethod]] = Registry(
    "bound on epsilon", "privaudit.statistics.epsilon", "privaudit.bounds"
)
"""Of other packages: what they show informs, whatever they say of themselves."""


def other_bounds(design: type[M], **offered: Any) -> list[M]:
    """Return other packages' ways to a bound for a design, in the order of their names.

    Args:
        design: The class that they inherit from.
        offered: Parameters, of which each takes those that are fields of its own.
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
