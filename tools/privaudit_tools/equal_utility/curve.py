"""How far a method leaks below early stopping at equal utility, paired by seed.

The curve goes through knots: a model that is not trained, and one transcript stopped
after more and more rounds. Between knots it is linear in the means over seeds. Leaks are
made to rise with utility by isotonic regression: what falls is noise, since whoever sees
more rounds may read fewer. Beyond its ends the curve says a bound, and nothing is
extrapolated.

The distance of a method is the curve at its mean utility less its mean leak. A seed's
contrast has the same weights of knots and the same slope, so that the mean of contrasts
is the distance, and their spread is that of seeds (the delta method).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate, mean_with_t

FEWEST = 3  # seeds that an interval is made of
Where = Literal["inside", "below", "above"]
Seeds = Float[np.ndarray, " seeds"]
Knots = Float[np.ndarray, "seeds knots"]


@dataclass(frozen=True)
class Measured:
    """Utility and leak of one setting by seed, each in [0, 1]."""

    utility: Mapping[int, float]
    leak: Mapping[int, float]


@dataclass(frozen=True)
class Standing:
    """Where a method stands to the curve.

    Attributes:
        distance: Positive below the curve; with Student's interval over seeds.
        by_seed: Each seed's contrast; their mean is the distance.
        where: "inside" the curve's utilities; "above" them, where the distance is from
            the curve's end; "below", where the method is worth no more than no training.
        p: Two-sided, that the distance is 0.
        p_useful: One-sided, that utility is not above that of no training.
    """

    distance: Estimate
    by_seed: Mapping[int, float]
    where: Where
    p: float
    p_useful: float


def at_least(where: str) -> str:
    """Return what stands before a distance: beyond the curve's end it is a bound."""
    return "at least " if where == "above" else ""


def standing(
    method: Measured, untrained: Measured, stops: Sequence[Measured]
) -> Standing:
    """Return where a method stands to early stopping.

    Args:
        method: Of one setting, fixed on other seeds.
        untrained: The curve's first knot.
        stops: Its others, in any order.

    Raises:
        ConfigError: Fewer than three seeds have all numbers.
    """
    knots = [untrained, *stops]
    seeds = sorted(set(method.utility).intersection(*(knot.utility for knot in knots)))
    if len(seeds) < FEWEST:
        raise ConfigError(
            f"A distance takes {FEWEST} seeds of the method and of every knot, and "
            f"there are {len(seeds)}. Name more evaluation seeds."
        )
    utilities, leaks = by_seed(knots, seeds)
    utility, leak = (
        np.array([getattr(method, name)[seed] for seed in seeds])
        for name in ("utility", "leak")
    )
    found, where = contrasts(utilities, leaks, utility, leak)
    return Standing(
        mean_with_t(found),
        dict(zip(seeds, found.tolist(), strict=True)),
        where,
        p_of_zero(found),
        p_above_zero(utility - utilities[:, 0]),
    )


def by_seed(knots: Sequence[Measured], seeds: Sequence[int]) -> tuple[Knots, Knots]:
    """Return the knots' utilities and leaks, a row for each seed."""
    utilities, leaks = (
        np.array([[getattr(knot, name)[seed] for knot in knots] for seed in seeds])
        for name in ("utility", "leak")
    )
    return utilities, leaks


def contrasts(
    knot_utilities: Knots, knot_leaks: Knots, utility: Seeds, leak: Seeds
) -> tuple[Seeds, Where]:
    """Return each seed's contrast, and where the method's mean utility lies.

    Example:
        >>> knots = np.array([[0.8, 0.9]] * 3), np.array([[0.5, 0.7]] * 3)
        >>> found, where = contrasts(*knots, np.full(3, 0.85), np.full(3, 0.55))
        >>> found.round(3).tolist(), where
        ([0.05, 0.05, 0.05], 'inside')
    """
    order = np.argsort(knot_utilities.mean(0), kind="stable")
    utilities, leaks = knot_utilities[:, order], knot_leaks[:, order]
    pooling = isotonic(leaks.mean(0))
    weights, slope, where = _at(
        utility.mean(), utilities.mean(0), pooling @ leaks.mean(0)
    )
    curve = leaks @ (pooling.T @ weights)
    return curve + slope * (utility - utilities @ weights) - leak, where


def _at(
    utility: float,
    utilities: Float[np.ndarray, " knots"],
    leaks: Float[np.ndarray, " knots"],
) -> tuple[Float[np.ndarray, " knots"], float, Where]:
    """Return the weights of knots around a utility, the slope there, and where it is."""
    weights = np.zeros(len(utilities))
    if utility <= utilities[0]:
        weights[0] = 1
        return weights, 0.0, "below"
    if utility >= utilities[-1]:
        weights[-1] = 1
        return weights, 0.0, "above"
    left = int(np.searchsorted(utilities, utility, side="right")) - 1
    width = utilities[left + 1] - utilities[left]
    part = (utility - utilities[left]) / width
    weights[left], weights[left + 1] = 1 - part, part
    return weights, float(leaks[left + 1] - leaks[left]) / width, "inside"


def isotonic(
    values: Float[np.ndarray, " knots"],
) -> Float[np.ndarray, "knots knots"]:
    """Return the matrix that pools neighbours until the values do not fall.

    Source: Barlow et al., "Statistical inference under order restrictions", 1972:
    pool adjacent violators, of equal weights.

    Example:
        >>> isotonic(np.array([1.0, 3.0, 2.0])) @ np.array([1.0, 3.0, 2.0])
        array([1. , 2.5, 2.5])
    """
    blocks: list[tuple[list[int], float]] = []
    for index, value in enumerate(values.tolist()):
        blocks.append(([index], value))
        while len(blocks) > 1 and blocks[-2][1] >= blocks[-1][1]:
            (first, low), (second, high) = blocks[-2:]
            both = first + second
            mean = (low * len(first) + high * len(second)) / len(both)
            blocks[-2:] = [(both, mean)]
    pooling = np.zeros((len(values), len(values)))
    for members, _ in blocks:
        pooling[np.ix_(members, members)] = 1 / len(members)
    return pooling


def p_of_zero(values: Seeds) -> float:
    """Return Student's two-sided p-value of a mean of 0.

    Example:
        >>> round(p_of_zero(np.array([0.1, 0.2, 0.3])), 4)
        0.0742
        >>> p_of_zero(np.zeros(3)), p_of_zero(np.ones(3))
        (1.0, 0.0)
    """
    return float(min(2 * min(p_above_zero(values), p_above_zero(-values)), 1.0))


def p_above_zero(values: Seeds) -> float:
    """Return Student's one-sided p-value of a mean of 0 or below."""
    count, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(count)
    if error < 1e-12:  # the same in all seeds, but for rounding
        return float(mean < 1e-12)
    return float(stdtr(count - 1, -mean / error))
