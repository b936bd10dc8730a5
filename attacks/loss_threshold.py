"""Loss threshold: a record that the model fits well was probably trained on."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.attack import ATTACKS, Adversary, Scores, Target
from privaudit.trainer import Records, label_log_probabilities


@ATTACKS.register("loss-threshold")
@dataclass(frozen=True)
class LossThreshold:
    """Score a candidate by the log-probability of its label.

    The threshold is the median score of public records, each class weighted as among
    the candidates: half of those who are no members are called members.

    Source: Yeom et al., "Privacy risk in machine learning: analyzing the connection to
    overfitting", CSF 2018, adversary 1; there the threshold is the mean training loss,
    which an adversary does not know.
    """

    trains_shadows: ClassVar[bool] = False

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in (-inf, 0]."""
        return [self._score(adversary, target) for target in targets]

    def _score(self, adversary: Adversary, target: Target) -> Scores:
        scores = _log_likelihood(adversary, target, target.candidates)
        public = adversary.task.public
        reference = _log_likelihood(adversary, target, public)
        weights = _class_weights(target.candidates.labels, public.labels)
        threshold = _weighted_median(reference, weights)
        how = "median of public records, classes weighted as among the candidates"
        return Scores(scores, scores > threshold, how)


def _log_likelihood(
    adversary: Adversary, target: Target, records: Records
) -> Float[np.ndarray, " records"]:
    models = [target.rebuilt.model]
    trainer, task = adversary.trainer, adversary.task
    return label_log_probabilities(trainer, task, models, records)[0].numpy()


def _class_weights(wanted: Tensor, labels: Tensor) -> Float[np.ndarray, " records"]:
    """Return weights that give ``labels`` the class shares of ``wanted``."""
    classes = int(max(wanted.max(), labels.max())) + 1
    share = torch.bincount(wanted, minlength=classes) / len(wanted)
    there = torch.bincount(labels, minlength=classes).clamp(min=1)
    return (share / there)[labels].numpy()


def _weighted_median(
    values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]
) -> float:
    order = np.argsort(values)
    passed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(passed, passed[-1] / 2)])
