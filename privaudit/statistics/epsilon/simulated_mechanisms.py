"""Simulated mechanisms whose epsilon is known, to try bounds on.

Each gives scores of canaries that were in or out by their own fair coins. They serve
both designs: noise is independent between canaries, as it is between runs, and as it is
in one run whose canaries do not overlap.
"""

import math
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import expit

from privaudit.statistics.epsilon.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_multiplier,
)


@runtime_checkable
class SimulatedMechanism(Protocol):
    """Anything that answers coins with known privacy."""

    def score(
        self, is_member: Bool[np.ndarray, "audits canaries"], rng: np.random.Generator
    ) -> Float[np.ndarray, "audits canaries"]:
        """Return one score for each coin, higher for in."""
        ...

    def epsilon_at(self, delta: float) -> float:
        """Return the smallest epsilon for which it is (epsilon, delta)-DP."""
        ...


@options(frozen=True)
class Silence:
    """Standard normal noise and nothing else: no leak."""

    def score(
        self, is_member: Bool[np.ndarray, "audits canaries"], rng: np.random.Generator
    ) -> Float[np.ndarray, "audits canaries"]:
        """Return noise."""
        return rng.standard_normal(is_member.shape)

    def epsilon_at(self, delta: float) -> float:
        """Return 0."""
        return 0.0


@options(frozen=True)
class GaussianCanaries:
    """The Gaussian mechanism: standard normal noise, and mu more for a member.

    Attributes:
        epsilon: At ``delta``.
        delta: In (0, 1).
    """

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @property
    def mu(self) -> float:
        """Sensitivity over the noise's standard deviation."""
        return 1 / gaussian_multiplier(self.epsilon, self.delta)

    def score(
        self, is_member: Bool[np.ndarray, "audits canaries"], rng: np.random.Generator
    ) -> Float[np.ndarray, "audits canaries"]:
        """Return the noised coins."""
        return is_member * self.mu + rng.standard_normal(is_member.shape)

    def epsilon_at(self, delta: float) -> float:
        """Return epsilon by the analytic Gaussian.

        Raises:
            ConfigError: ``delta`` is 0, where no epsilon is enough.
        """
        return gaussian_epsilon(self.mu, delta)


@options(frozen=True)
class RandomisedResponse:
    """Each coin, turned over with a chance of 1 / (1 + e^epsilon).

    No (epsilon, 0)-DP mechanism says more about a coin.

    Attributes:
        epsilon: At delta = 0.
    """

    epsilon: Annotated[float, Field(ge=0)]

    def score(
        self, is_member: Bool[np.ndarray, "audits canaries"], rng: np.random.Generator
    ) -> Float[np.ndarray, "audits canaries"]:
        """Return answers of 0 and 1."""
        truthful = rng.random(is_member.shape) < expit(self.epsilon)
        return (is_member == truthful).astype(np.float64)

    def epsilon_at(self, delta: float) -> float:
        """Return log((q - delta) / (1 - q)), at least 0, q the chance of the truth."""
        right = float(expit(self.epsilon))
        if right <= delta:
            return 0.0
        return max(math.log(right - delta) - math.log(1 - right), 0.0)
