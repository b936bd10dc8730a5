"""Means of weighted records, and intervals from each record's influence on them.

Linearisation: the variance of a statistic is the sum over records of its squared
influence, as far as it is one of independent records.
"""

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

Rows = Float[np.ndarray, "rows records"]


def weighted_means(
    scores: Rows, weights: Rows | Bool[np.ndarray, "rows records"]
) -> tuple[Float[np.ndarray, " rows"], Rows]:
    """Return each row's weighted mean, and the influence of each record on it.

    Args:
        scores: Of each record, for each row.
        weights: 0 or more, of any sum above 0.
    """
    share = weights / weights.sum(axis=1, keepdims=True)
    means = (scores * share).sum(axis=1)
    return means, (scores - means[:, None]) * share


def inflation(records: int) -> float:
    """Return what a variance is multiplied by, its mean being estimated as well."""
    return records / max(1, records - 1)


def half_width(
    influence: Float[np.ndarray, " records"], records: int, confidence: float
) -> float:
    """Return half the width of a normal interval.

    Args:
        influence: Of each record on the statistic.
        records: How many count.
        confidence: Coverage, in (0, 1).
    """
    variance = (influence**2).sum() * inflation(records)
    return float(norm.ppf((1 + confidence) / 2) * np.sqrt(variance))
