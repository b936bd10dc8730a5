"""Confidence: a record that the model is surer of than of others of its class."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.signal_attack import score_signal
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.thresholds import CLASS_MEDIANS, PUBLIC_MEDIAN


@ATTACKS.register("confidence")
@dataclass(frozen=True)
class Confidence:
    """Score a candidate by the log-odds of its label, against its class's median.

    Source: Song and Mittal, "Systematic evaluation of privacy risks of machine learning
    models", USENIX Security 2021, section 3.2. There each class's threshold is learned
    on a shadow model; here it is the median of public records, and log-odds stand for
    the probability, which orders a class's records alike.

    Attributes:
        per_class: Whether each class has a threshold of its own. Without, and with two
            classes, it orders candidates as the loss threshold does.
    """

    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    per_class: bool = True

    @property
    def threshold(self) -> str:
        """How guesses are made, in words."""
        return CLASS_MEDIANS if self.per_class else PUBLIC_MEDIAN

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats."""
        return score_signal(adversary, targets, _log_odds, per_class=self.per_class)


def _log_odds(signals: SignalTable) -> Float[np.ndarray, " records"]:
    return signals.confidence[0].double().numpy()
