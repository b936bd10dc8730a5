"""Intervals for numbers of a whole corpus, by drawing its images again."""

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri

from privaudit.statistics.estimate import Estimate, needs, unresolved

LEAST = 10
"""With fewer records a bootstrap's interval is too narrow to be one."""
REPLICATES, CONFIDENCE = 2000, 0.95
_METHOD = f"bootstrap over {{what}} (BCa, {REPLICATES} replicates)"
CHUNK = 2_000_000
"""Weights that are held at once."""

Statistic = Callable[
    [Float[np.ndarray, "*samples columns"]], Float[np.ndarray, "*samples numbers"]
]


def bootstrap_estimates(
    columns: Float[np.ndarray, "records columns"],
    statistic: Statistic,
    values: Mapping[str, float],
    rng: np.random.Generator,
    models: int,
    records: str,
) -> Mapping[str, Estimate]:
    """Return the mean over models of each number, with an interval over records.

    Args:
        columns: What is added up, for each record.
        statistic: The numbers from sums, for each row.
        values: The numbers of the records as they are: with too few records there is no
            more to say.
        rng: Draws the records.
        models: Whose mean it is.
        records: What is drawn, in a word.
    """
    count = len(columns)
    mean = f"mean of {models} models, " if models > 1 else ""
    method = mean + _METHOD.format(what=records)
    if count < LEAST:
        reason = needs(LEAST, records, count)
        return {
            name: unresolved(reason, (count,), method, CONFIDENCE, value)
            for name, value in values.items()
        }
    ends = bootstrap_sums(columns, statistic, rng).tolist()
    return {
        name: Estimate(value, low, high, (count,), method, CONFIDENCE)
        for name, (value, low, high) in zip(values, ends, strict=True)
    }


def bootstrap_sums(
    columns: Float[np.ndarray, "images columns"],
    statistic: Statistic,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> Float[np.ndarray, "numbers 3"]:
    """Return functions of sums, each with the ends of its BCa bootstrap interval.

    A replicate draws as many images as there are, with replacement: its sums are one
    product of how often each was drawn and the columns. The ends rest on 5 % of them.

    Source: Efron, "Better bootstrap confidence intervals", JASA 82, 1987.
    """
    total = columns.sum(axis=0)
    values = statistic(total)
    drawn = statistic(_draw_sums(columns, rng, replicates))
    left_out = statistic(total - columns)
    tails = np.array([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    ends = [
        np.quantile(drawn[:, i], _levels(values[i], drawn[:, i], left_out[:, i], tails))
        for i in range(len(values))
    ]
    low, high = np.array(ends).T
    return np.stack([values, np.minimum(low, values), np.maximum(high, values)], axis=1)


def _draw_sums(
    columns: Float[np.ndarray, "images columns"],
    rng: np.random.Generator,
    replicates: int,
) -> Float[np.ndarray, "replicates columns"]:
    images = len(columns)
    at_once = max(1, CHUNK // images)
    sums = []
    for start in range(0, replicates, at_once):
        rows = min(at_once, replicates - start)
        chosen = rng.integers(0, images, size=(rows, images))
        chosen += images * np.arange(rows)[:, None]
        times = np.bincount(chosen.ravel(), minlength=rows * images)
        sums.append(times.reshape(rows, images) @ columns)
    return np.concatenate(sums)


def _levels(
    value: np.floating,
    drawn: Float[np.ndarray, " replicates"],
    left_out: Float[np.ndarray, " images"],
    tails: Float[np.ndarray, " ends"],
) -> Float[np.ndarray, " ends"]:
    """Return which quantiles of the replicates are the ends of the interval."""
    below = (drawn < value).mean() + (drawn == value).mean() / 2
    apart = left_out.mean() - left_out
    spread = (apart**2).sum()
    if not 0 < below < 1 or spread == 0:  # all alike: nothing to correct by
        return tails
    acceleration = (apart**3).sum() / (6 * spread**1.5)
    bias = ndtri(below)
    moved = bias + ndtri(tails)
    return ndtr(bias + moved / (1 - acceleration * moved))
