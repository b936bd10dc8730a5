"""Interval formulas that need nothing but counts."""

import math

import numpy as np
from jaxtyping import Float
from scipy.special import betaincinv, ndtri

from privaudit.errors import ConfigError


def check_confidence(confidence: float) -> None:
    """Raise ConfigError unless ``confidence`` is in (0, 1)."""
    if not 0 < confidence < 1:
        raise ConfigError(
            f"A confidence of {confidence} is not between 0 and 1. "
            "Give a share, such as 0.95."
        )


def normal_quantile(confidence: float) -> float:
    """Return the two-sided standard-normal quantile, 1.96 for 0.95."""
    check_confidence(confidence)
    return float(ndtri((1 + confidence) / 2))


def clopper_pearson(
    successes: Float[np.ndarray, " rates"], trials: int | float, confidence: float
) -> tuple[Float[np.ndarray, " rates"], Float[np.ndarray, " rates"]]:
    """Return the exact binomial bounds, 0 without a success and 1 without a failure.

    Counts need not be whole: survey statistics puts effective sample sizes in.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated
    in the case of the binomial", Biometrika 26, 1934.
    """
    check_confidence(confidence)
    failures, tail = trials - successes, (1 - confidence) / 2
    tiny = 1e-9  # a shape of 0 is NaN: shift it, then overwrite the result
    low = betaincinv(np.maximum(successes, tiny), failures + 1, tail)
    high = betaincinv(successes + 1, np.maximum(failures, tiny), 1 - tail)
    return (
        np.where(successes > tiny, low, 0.0),
        np.where(failures > tiny, high, 1.0),
    )


def wilson(rate: float, trials: int, confidence: float) -> tuple[float, float]:
    """Return the score bounds of a proportion, which hold it.

    Source: Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22, 1927.
    """
    z = normal_quantile(confidence)
    shrink = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / shrink
    spread = rate * (1 - rate) / trials + z * z / (4 * trials * trials)
    half = z * math.sqrt(spread) / shrink
    # The bound at 0 and 1 is 0 and 1, but for rounding.
    return min(centre - half, rate), max(centre + half, rate)
