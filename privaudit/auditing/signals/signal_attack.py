"""What attacks share that score one quantity of the target, without shadow models."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from privaudit.auditing.attack import Adversary, Scores, Target
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.target import target_signals
from privaudit.auditing.signals.thresholds import public_threshold

Signal = Callable[[SignalTable], Float[np.ndarray, " records"]]


def score_signal(
    adversary: Adversary,
    targets: Sequence[Target],
    signal: Signal,
    *,
    per_class: bool,
) -> list[Scores]:
    """Score each target's candidates by what the target itself says of them.

    Args:
        adversary: Who asks.
        targets: Clients under attack.
        signal: Higher means more likely a member.
        per_class: Whether a score is what a candidate has above the median public
            record of its class, of all where there is none: a threshold for each class.
            Without, there is one threshold, as the loss threshold's.
    """
    scored = []
    for target in targets:
        candidates, public = target_signals(adversary, target)
        scores, reference = signal(candidates), signal(public)
        labels, others = candidates.labels, public.labels
        if per_class:
            scores = scores - class_medians(reference, others.numpy(), labels.numpy())
            scored.append(Scores(scores, scores > 0))
        else:
            threshold = public_threshold(reference, others, labels)
            scored.append(Scores(scores, scores > threshold))
    return scored


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
