"""Thresholds for guesses that need no truth: medians of public records."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from privaudit.auditing.attack import Adversary, Scores, Target
from privaudit.federated.trainer import Records

PUBLIC_MEDIAN = "median of public records, classes weighted as among the candidates"
CLASS_MEDIANS = "median of public records of each class"
FARTHEST = 1e30  # a text or token that cannot come, as a finite score


def score_beside_public(
    adversary: Adversary,
    targets: Sequence[Target],
    score: Callable[[Target, Records], Float[np.ndarray, " records"]],
) -> list[Scores]:
    """Score each target's candidates; above the median public record is a member."""
    public, scored = adversary.task.public, []
    for target in targets:
        scores, others = (score(target, some) for some in (target.candidates, public))
        labels = public.labels, target.candidates.labels
        scored.append(Scores(scores, scores > public_threshold(others, *labels)))
    return scored


def public_threshold(
    scores: Float[np.ndarray, " public"],
    labels: Int[Tensor, " public"],
    candidates: Int[Tensor, " candidates"],
) -> float:
    """Return a score that half of those who are no members exceed.

    Public records' scores are weighted so that classes have the candidates' shares.
    """
    classes = int(max(candidates.max(), labels.max())) + 1
    share = torch.bincount(candidates, minlength=classes) / len(candidates)
    there = torch.bincount(labels, minlength=classes).clamp(min=1)
    weights = (share / there)[labels].numpy()
    order = np.argsort(scores)
    passed = np.cumsum(weights[order])
    return float(scores[order][np.searchsorted(passed, passed[-1] / 2)])


def class_medians(
    scores: Float[np.ndarray, " public"],
    labels: Int[np.ndarray, " public"],
    wanted: Int[np.ndarray, " candidates"],
) -> Float[np.ndarray, " candidates"]:
    """Return the median score of each candidate's class, or of all if it has none."""
    medians = np.full(int(max(labels.max(), wanted.max())) + 1, np.median(scores))
    for label in np.unique(labels):
        medians[label] = np.median(scores[labels == label])
    return medians[wanted]
