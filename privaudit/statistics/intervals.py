"""Interval formulas that need nothing but counts."""

import math

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import betaincinv, ndtri, stdtrit

from privaudit.core.errors import ConfigError


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


Rows = Float[np.ndarray, "rows records"]


def weighted_means(
    scores: Rows, weights: Rows | Bool[np.ndarray, "rows records"]
) -> tuple[Float[np.ndarray, " rows"], Rows]:
    """Return each row's weighted mean, and the influence of each record on it.

    Weights are 0 or more, of any sum above 0.
    """
    share = weights / weights.sum(axis=1, keepdims=True)
    means = (scores * share).sum(axis=1)
    return means, (scores - means[:, None]) * share


def inflation(records: int | float) -> float:
    """Return what a variance is multiplied by, its mean being estimated as well."""
    return records / max(1, records - 1)


def effective_count(
    values: Float[np.ndarray, " records"] | Bool[np.ndarray, " records"],
    clusters: Int[np.ndarray, " clusters"],
) -> float:
    """Return how many independent records have a mean as sure as that of these.

    At most their number. Where all values are equal, it is the number of clusters.

    Source: Korn and Graubard, "Confidence intervals for proportions with small expected
    number of positive counts estimated from survey data", Survey Methodology 24, 1998,
    with their adjustment for degrees of freedom.
    """
    _, number = np.unique(clusters, return_inverse=True)
    count, size = int(number.max()) + 1, len(values)
    spread = values - values.mean()
    plain = float(spread @ spread) * inflation(size)
    if not plain or count == 1:
        return float(count)
    sums = np.bincount(number, spread)
    between = float(sums @ sums) * inflation(count)
    if not between:  # all clusters alike
        return float(size)
    few = stdtrit(size - 1, 0.975) / stdtrit(count - 1, 0.975)
    return min(float(size), size * plain / between * float(few) ** 2)


def half_width(
    influence: Float[np.ndarray, " records"], records: int, confidence: float
) -> float:
    """Return half the width of a normal interval, from influences of ``records``."""
    variance = (influence**2).sum() * inflation(records)
    return float(normal_quantile(confidence) * np.sqrt(variance))
