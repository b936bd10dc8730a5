"""Macro F1: how well classes are told, each counted as much as every other."""

import numpy as np
from jaxtyping import Float, Int

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import half_width

METHOD = "macro F1 averaged over models, linearised over test records"


def macro_f1(
    predicted: Int[np.ndarray, "models records"],
    labels: Int[np.ndarray, " records"],
    confidence: float = 0.95,
) -> Estimate:
    """Return the mean over models of the mean over classes of F1.

    F1 of a class is 2 T / (P + A): T records are rightly told to be of it, P are told
    to be, and A are. Classes without a test record do not count; telling one is wrong
    for the class that it is. All models are asked about the same records, so the
    replicate is the record: the variance is the sum of squared influences, and a
    record's on F1 is (2 T' - F1 (P' + A')) / (P + A) with its own part of each count.
    The interval says how the number would move with other test records.

    Args:
        predicted: Class indices that each model tells.
        labels: Class indices.
        confidence: Coverage, in (0, 1).

    Raises:
        ConfigError: There is no record, or no model.

    Example:
        >>> print(macro_f1(np.array([[0, 0, 1, 1]]), np.array([0, 0, 0, 1])))
        0.733 [0.217, 1.000], n = 4
    """
    if not predicted.size:
        raise ConfigError(
            f"There are {predicted.shape[0]} models and {predicted.shape[1]} test "
            "records, so that there is no F1. Give at least one of each."
        )
    found = [_one(told, labels) for told in predicted]
    value = float(np.mean([one for one, _ in found]))
    influence = np.mean([each for _, each in found], axis=0)
    records = len(labels)
    half = half_width(influence, records, confidence)
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    return Estimate(value, float(low), float(high), (records,), METHOD, confidence)


def _one(
    told: Int[np.ndarray, " records"], labels: Int[np.ndarray, " records"]
) -> tuple[float, Float[np.ndarray, " records"]]:
    """Return one model's macro F1, and the influence of each record on it."""
    classes = int(max(told.max(), labels.max())) + 1
    right = told == labels
    there = np.bincount(labels, minlength=classes)
    counted = there + np.bincount(told, minlength=classes)
    weight = (there > 0) / np.maximum(counted, 1)
    f1 = 2 * np.bincount(labels[right], minlength=classes) * weight
    share = (there > 0).sum()
    lost = f1 * weight
    influence = 2 * right * weight[labels] - lost[labels] - lost[told]
    return float(f1.sum() / share), influence / share
