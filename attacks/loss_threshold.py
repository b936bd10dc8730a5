"""Loss threshold: a record that the model fits well was probably trained on."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.signal_attack import score_signal
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN


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

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "classification"

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in (-inf, 0]."""
        return score_signal(adversary, targets, _log_likelihood, per_class=False)


def _log_likelihood(signals: SignalTable) -> Float[np.ndarray, " records"]:
    return signals.log_likelihood[0].numpy()
