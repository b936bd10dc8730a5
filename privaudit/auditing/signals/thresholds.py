"""A threshold for guesses that needs no truth: the median of public records."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

PUBLIC_MEDIAN = "median of public records, classes weighted as among the candidates"
CLASS_MEDIANS = "median of public records of each class"


def public_threshold(
    scores: Float[np.ndarray, " public"],
    labels: Int[Tensor, " public"],
    candidates: Int[Tensor, " candidates"],
) -> float:
    """Return a score that half of those who are no members exceed.

    Args:
        scores: Of public records.
        labels: Their classes.
        candidates: The candidates' classes, whose shares the public records are given.
    """
    weights = _class_weights(candidates, labels)
    order = np.argsort(scores)
    passed = np.cumsum(weights[order])
    return float(scores[order][np.searchsorted(passed, passed[-1] / 2)])


def _class_weights(wanted: Tensor, labels: Tensor) -> Float[np.ndarray, " records"]:
    """Return weights that give ``labels`` the class shares of ``wanted``."""
    classes = int(max(wanted.max(), labels.max())) + 1
    share = torch.bincount(wanted, minlength=classes) / len(wanted)
    there = torch.bincount(labels, minlength=classes).clamp(min=1)
    return (share / there)[labels].numpy()
