"""Entropy: a record that the model decides without hesitation."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.signal_attack import score_signal
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.thresholds import CLASS_MEDIANS, PUBLIC_MEDIAN


@ATTACKS.register("entropy")
@dataclass(frozen=True)
class Entropy:
    """Score a candidate by minus the entropy of the prediction, without its label.

    A model that is sure and wrong counts as sure: see ``modified-entropy``.

    Source: Song and Mittal, "Systematic evaluation of privacy risks of machine learning
    models", USENIX Security 2021, section 3.2, after Shokri et al. 2017; thresholds
    are medians of public records here.

    Attributes:
        per_class: Whether each class has a threshold of its own.
    """

    trains_shadows: ClassVar[bool] = False
    uses_labels: ClassVar[bool] = False  # but for the threshold of each class
    task: ClassVar[AnyTask] = "classification"

    per_class: bool = True

    @property
    def threshold(self) -> str:
        """How guesses are made, in words."""
        return CLASS_MEDIANS if self.per_class else PUBLIC_MEDIAN

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats."""
        return score_signal(adversary, targets, _certainty, per_class=self.per_class)


def _certainty(signals: SignalTable) -> Float[np.ndarray, " records"]:
    return -signals.entropy[0].double().numpy()
