"""Attacks on a classifier's outputs: one quantity of the target, without shadow models.

Source of all but the loss threshold: Song and Mittal, "Systematic evaluation of privacy
risks of machine learning models", USENIX Security 2021. There each class's threshold is
learned on a shadow model; here it is the median of public records.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    CLASS_MEDIANS,
    PUBLIC_MEDIAN,
    SignalTable,
    class_medians,
    public_threshold,
    target_signals,
)


class OutputAttack:
    """Score records by one signal of the target, each class against its own median.

    It has no fields: those of a base come first in ``repr``, which audits store.

    Attributes:
        per_class: Whether each class has a threshold of its own; a field of all but the
            loss threshold, which has one threshold.
    """

    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"
    per_class = False

    @property
    def threshold(self) -> str:
        """How guesses are made, in words."""
        return CLASS_MEDIANS if self.per_class else PUBLIC_MEDIAN

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats.

        With a threshold for each class a score is what a candidate has above the median
        public record of its class, or of all where its class has none.
        """
        scored = []
        for target in targets:
            candidates, public = target_signals(adversary, target)
            scores, others = self._signal(candidates), self._signal(public)
            labels, threshold = candidates.labels, 0.0
            if self.per_class:
                usual = class_medians(others, public.labels.numpy(), labels.numpy())
                scores = scores - usual
            else:
                threshold = public_threshold(others, public.labels, labels)
            scored.append(Scores(scores, scores > threshold))
        return scored

    def _signal(self, signals: SignalTable) -> Float[np.ndarray, " records"]:
        raise NotImplementedError


@ATTACKS.register("loss-threshold")
@dataclass(frozen=True)
class LossThreshold(OutputAttack):
    """Score a candidate by the log-probability of its label.

    The threshold is the median score of public records, each class weighted as among
    the candidates: half of those who are no members are called members.

    Source: Yeom et al., "Privacy risk in machine learning: analyzing the connection to
    overfitting", CSF 2018, adversary 1; there the threshold is the mean training loss,
    which an adversary does not know.
    """

    def _signal(self, signals: SignalTable) -> Float[np.ndarray, " records"]:
        return signals.log_likelihood[0].numpy()


@ATTACKS.register("confidence")
@dataclass(frozen=True)
class Confidence(OutputAttack):
    """Score a candidate by the log-odds of its label, against its class's median.

    Without a threshold for each class, and with two classes, it orders candidates as
    the loss threshold does.

    Source: Song and Mittal, section 3.2; log-odds stand for the probability, which
    orders a class's records alike.
    """

    per_class: bool = True

    def _signal(self, signals: SignalTable) -> Float[np.ndarray, " records"]:
        return signals.confidence[0].double().numpy()


@ATTACKS.register("entropy")
@dataclass(frozen=True)
class Entropy(OutputAttack):
    """Score a candidate by minus the entropy of the prediction, without its label.

    A model that is sure and wrong counts as sure: see ``modified-entropy``. Labels
    serve only for the threshold of each class.

    Source: Song and Mittal, section 3.2, after Shokri et al. 2017.
    """

    uses_labels: ClassVar[bool] = False

    per_class: bool = True

    def _signal(self, signals: SignalTable) -> Float[np.ndarray, " records"]:
        return -signals.entropy[0].double().numpy()


@ATTACKS.register("modified-entropy")
@dataclass(frozen=True)
class ModifiedEntropy(OutputAttack):
    """Score a candidate by minus the modified entropy, which looks at its label.

    It is at most 0 before the threshold is taken.

    Source: Song and Mittal, equation 8.
    """

    per_class: bool = True

    def _signal(self, signals: SignalTable) -> Float[np.ndarray, " records"]:
        return -signals.modified_entropy[0].double().numpy()
