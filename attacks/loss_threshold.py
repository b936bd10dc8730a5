"""Loss threshold: a record that the model fits well was probably trained on."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.asking import label_log_probabilities
from privaudit.attack import ATTACKS, Adversary, Scores, Target
from privaudit.public_threshold import PUBLIC_MEDIAN, public_threshold
from privaudit.trainer import Records


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
    reads: ClassVar[Literal["classes", "words", "either"]] = "classes"

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in (-inf, 0]."""
        return [self._score(adversary, target) for target in targets]

    def _score(self, adversary: Adversary, target: Target) -> Scores:
        scores = _log_likelihood(adversary, target, target.candidates)
        public = adversary.task.public
        reference = _log_likelihood(adversary, target, public)
        threshold = public_threshold(reference, public.labels, target.candidates.labels)
        return Scores(scores, scores > threshold, PUBLIC_MEDIAN)


def _log_likelihood(
    adversary: Adversary, target: Target, records: Records
) -> Float[np.ndarray, " records"]:
    models = [target.rebuilt.model]
    trainer, task = adversary.trainer, adversary.task
    return label_log_probabilities(trainer, task, models, records)[0].numpy()
