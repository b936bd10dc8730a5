"""Whether bounds hold and what they show, by simulation; for tests and `selftest`.

A bound that holds is beyond the truth in at most its significance of audits
(:func:`coverage`), without a leak and with one. It can pass the first and fail the
second.
"""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from privaudit.core.errors import TooFewRecordsError
from privaudit.statistics.epsilon.bound import EpsilonMethod, other_bounds
from privaudit.statistics.epsilon.f_dp_one_run import FDPOneRun
from privaudit.statistics.epsilon.fixed_grid import FixedGrid
from privaudit.statistics.epsilon.multi_split import MultiSplit
from privaudit.statistics.epsilon.one_run import OneRunGuesses
from privaudit.statistics.epsilon.simulated_mechanisms import SimulatedMechanism
from privaudit.statistics.epsilon.split_threshold import SplitThreshold
from privaudit.statistics.estimate import Estimate, proportion

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
