"""Difficulty calibration: what did the model learn of this record beyond its start?"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from pydantic.dataclasses import dataclass

from privaudit.auditing.attack import ATTACKS, Adversary, AnyTask, Scores, Target
from privaudit.auditing.signals.signals import SignalTable
from privaudit.auditing.signals.target import ask_signals, target_signals
from privaudit.auditing.signals.thresholds import PUBLIC_MEDIAN, public_threshold
from privaudit.core.tensors import Tensors
from privaudit.federated.federation import Federation, give_away
from privaudit.federated.trainer import ClientId
from privaudit.federated.transcripts.threat_models import View


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
        start = _before_training(adversary, [target.client for target in targets])
        return [self._score(adversary, t, start[t.client]) for t in targets]

    def _score(self, adversary: Adversary, target: Target, start: Tensors) -> Scores:
        public = adversary.task.public
        now, reference = map(_log_likelihood, target_signals(adversary, target))
        before, known = (
            _log_likelihood(ask_signals(adversary, [start], records))
            for records in (target.candidates, public)
        )
        slope = _slope(known, reference) if self.slope is None else self.slope
        scores, others = now - slope * before, reference - slope * known
        labels = public.labels, target.candidates.labels
        return Scores(scores, scores > public_threshold(others, *labels))


def _log_likelihood(told: SignalTable) -> Float[np.ndarray, " records"]:
    return told.log_likelihood[0].double().numpy()


def _slope(
    before: Float[np.ndarray, " public"], after: Float[np.ndarray, " public"]
) -> float:
    """Return by how much the one moves with the other; 0 where it does not vary."""
    centred = before - before.mean()
    spread = float(centred @ centred)
    return float(centred @ (after - after.mean())) / spread if spread else 0.0


def _before_training(
    adversary: Adversary, clients: Sequence[ClientId]
) -> dict[ClientId, Tensors]:
    """Return what each client's model was before its first round."""
    view = adversary.view
    sent = [m for m in view.messages if m.kind == "broadcast"]
    if not sent:
        view = _of_no_rounds(adversary, clients)
    else:
        first = {m.receiver: m for m in reversed(sent)}
        view = View(view.adversary, tuple(first.values()))
    return {c: replace(adversary, view=view).reconstruct(c).model for c in clients}


def _of_no_rounds(adversary: Adversary, clients: Sequence[ClientId]) -> View:
    trainer, task = adversary.trainer, adversary.task
    nothing = task.public.pick(torch.arange(0))
    federation = Federation.begin(
        trainer, task, dict.fromkeys(clients, nothing), adversary.seeds, "untrained"
    )
    return adversary.threat(give_away(trainer, task, federation, 0)[1])
