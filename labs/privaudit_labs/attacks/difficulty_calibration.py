"""Difficulty calibration: what did the model learn of this record beyond its start?"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals import (
    PUBLIC_MEDIAN,
    SignalTable,
    ask_signals,
    public_threshold,
    target_signals,
)
from privaudit.core.tensors import Tensors
from privaudit_labs.attacks.before_training import models_before_training, slope_of


@ATTACKS.register("difficulty-calibration")
@dataclass(frozen=True)
class DifficultyCalibration:
    """Score a candidate by its log-likelihood less what it was before training.

    A record that is easy for everybody says little by a small loss. The reference is
    the model as the first broadcast has it; an adversary who saw none starts a
    federation of its own, and rebuilds the client before any round.

    Source: Watson, Guo, Cormode and Sablayrolles, "On the importance of difficulty
    calibration in membership inference attacks", ICLR 2022, equation 2, with one
    reference model; the ratio to a reference of Carlini et al., "Extracting training
    data from large language models", USENIX Security 2021, is the same in logarithms.
    Both subtract the whole reference (a slope of 1); where it tells little of
    difficulty, as a model of random weights does, that adds its noise.

    Attributes:
        slope: How much of the reference is subtracted; None takes the slope of least
            squares over public records, none of which was trained on.
    """

    threshold: ClassVar[str] = PUBLIC_MEDIAN
    trains_shadows: ClassVar[bool] = False
    task: ClassVar[AnyTask] = "either"

    slope: Annotated[float, Field(ge=0, le=10)] | None = None

    def __call__(self, adversary: Adversary, targets: Sequence[Target]) -> list[Scores]:
        """Score each target's candidates, in nats."""
        start = models_before_training(adversary, [target.client for target in targets])
        return [self._score(adversary, t, start[t.client]) for t in targets]

    def _score(self, adversary: Adversary, target: Target, start: Tensors) -> Scores:
        public = adversary.task.public
        now, reference = map(_log_likelihood, target_signals(adversary, target))
        before, known = (
            _log_likelihood(ask_signals(adversary, [start], records))
            for records in (target.candidates, public)
        )
        slope = slope_of(known, reference) if self.slope is None else self.slope
        scores, others = now - slope * before, reference - slope * known
        labels = public.labels, target.candidates.labels
        return Scores(scores, scores > public_threshold(others, *labels))


def _log_likelihood(signals: SignalTable) -> Float[np.ndarray, " records"]:
    return signals.log_likelihood[0].double().numpy()
