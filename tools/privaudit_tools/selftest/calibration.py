"""Whether bounds hold and what they show, by simulation; for tests and `selftest`.

Simulated mechanisms have a known epsilon. Each gives scores of canaries that were in or
out by their own fair coins. They serve both designs: noise is independent between
canaries, as it is between runs, and as it is in one run whose canaries do not overlap.
A bound that holds is beyond the truth in at most its significance of audits
(:func:`coverage`), without a leak and with one. It can pass the first and fail the
second.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import expit, log_expit

from privaudit.core.errors import TooFewRecordsError
from privaudit.privacy.accountant import gaussian_epsilon, gaussian_multiplier
from privaudit.statistics.epsilon.bound import EpsilonMethod, other_bounds
from privaudit.statistics.epsilon.many_runs import MultiSplit, SplitThreshold
from privaudit.statistics.epsilon.one_run import FDPOneRun, OneRunGuesses
from privaudit.statistics.estimate import Estimate, proportion
from privaudit_tools.selftest.fixed_grid import FixedGrid


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
        return max(math.log(right - delta) - float(log_expit(-self.epsilon)), 0.0)


AT_ONCE = 1_000_000  # scores; more would only take memory
_SPLITS = 3  # of the median; more only take longer here
GRID = tuple(np.linspace(-2.0, 4.0, 9).tolist())  # in standard deviations of the noise


def standard_bounds(n: int, delta: float = 1e-5) -> Mapping[str, EpsilonMethod]:
    """Return one of each bound for n canaries or runs, by the name of its class.

    Those of other packages are among them.

    One-run bounds guess at a fifth of the canaries, half of them in. Grids are for
    noise of standard deviation 1, as the simulated mechanisms have.

    Args:
        n: At least 10.
        delta: Above 0 where a bound assumes a Gaussian mechanism.

    Raises:
        TooFewRecordsError: n is too small.
    """
    if n < 10:
        raise TooFewRecordsError(
            f"{n} canaries leave none to guess at in a fifth of them. Use 10 or more."
        )
    side = {"guesses_in": n // 10, "guesses_out": n // 10}
    bounds: list[EpsilonMethod] = [
        SplitThreshold(delta=delta),
        MultiSplit(delta=delta, splits=_SPLITS),
        FixedGrid(delta=delta, thresholds=GRID),
        OneRunGuesses(delta=delta, **side),
        FDPOneRun(delta=delta, **side),
        *other_bounds(EpsilonMethod, delta=delta, thresholds=GRID, **side),  # type: ignore[type-abstract]
    ]
    return {type(bound).__name__: bound for bound in bounds}


def simulated(
    bound: EpsilonMethod,
    mechanism: SimulatedMechanism,
    n: int,
    audits: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " audits"]:
    """Return the bounds of so many simulated audits of n canaries or runs each."""
    block, done = max(1, AT_ONCE // n), []
    for start in range(0, audits, block):
        is_member = rng.random((min(block, audits - start), n)) < 0.5
        done.append(bound.values(mechanism.score(is_member, rng), is_member))
    return np.concatenate(done)


def coverage(
    bound: EpsilonMethod,
    mechanism: SimulatedMechanism,
    n: int,
    audits: int,
    rng: np.random.Generator,
) -> Estimate:
    """Return the share of audits whose bound is beyond the truth: the fewer the better.

    The truth is the mechanism's epsilon at the bound's delta.

    Args:
        bound: Fixed in all respects.
        mechanism: With an epsilon at the bound's delta.
        n: Canaries, or runs, in each audit.
        audits: How many to simulate.
        rng: Of coins and noise.
    """
    truth = mechanism.epsilon_at(bound.delta)
    # Bounds are found by halving, so equality is only meant to 1e-9.
    beyond = simulated(bound, mechanism, n, audits, rng) > truth + 1e-9
    return proportion(int(beyond.sum()), audits)


def holds(share: Estimate, significance: float) -> bool:
    """Return whether a share of false bounds is at most alpha + 3 standard errors."""
    allowance = 3 * math.sqrt(significance * (1 - significance) / share.n[0])
    return share.value <= significance + allowance
