"""What a recorded federation's uploads show of clipping and of the server's noise.

Its clients are what is protected, and clipped as a whole: all tensors of an update
together. Uploads are models, or the moves from what was received.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from privaudit.checks.lint.evidence import Evidence
from privaudit.federated.transcripts.transcript import Message
from privaudit.federated.weighted_mean import WEIGHT
from privaudit.privacy.events import MechanismEvent
from privaudit.recording.bundle import CLIPPED_BY
from privaudit.recording.recorded_trainer import RecordedTrainer

Moves = Mapping[str, Tensor]


def is_recorded(evidence: Evidence) -> bool:
    """Say whether others trained the federation, and send weighted means."""
    trainer = evidence.trainer
    return isinstance(trainer, RecordedTrainer) and trainer.declared.kind == "mean"


def clips_later(evidence: Evidence) -> bool:
    """Say whether the server clips uploads: they are recorded as they were sent."""
    return evidence.settings.get(CLIPPED_BY) == "server"


def joint_move(evidence: Evidence, message: Message) -> tuple[Moves, float]:
    """Return by what a client moved what it had received, and how far in all.

    A client's messages in a recorded run are models times their weight.
    """
    received = evidence.broadcasts.get(message.round, {})
    weight = float(message.tensors[WEIGHT])
    moves = {
        name: tensor.double() / weight - received[name].double()
        for name, tensor in message.tensors.items()
        if name in received and weight
    }
    return moves, math.sqrt(sum(float(m.square().sum()) for m in moves.values()))


def server_noise(
    evidence: Evidence,
) -> Iterator[tuple[int, MechanismEvent, Tensor]]:
    """Yield the noise that the server added: the next broadcast less the mean.

    In the units of the heaviest upload's move, as the mechanism counts it; of rounds
    whose next model was broadcast.
    """
    for index, messages in sorted(evidence.uploads.items()):
        event = evidence.event_of(index, "global")
        before, after = (evidence.broadcasts.get(i) for i in (index, index + 1))
        if event is None or event.noise_at != "server" or not (before and after):
            continue
        weights = [float(message.tensors[WEIGHT]) for message in messages]
        moves = [_clipped(evidence, event, message) for message in messages]
        noise = [
            after[name].double()
            - before[name].double()
            - sum(w * m[name] for w, m in zip(weights, moves, strict=True))
            / sum(weights)
            for name in before
            if after[name].is_floating_point()
        ]
        flat = torch.cat([tensor.flatten() for tensor in noise])
        yield index, event, flat * sum(weights) / max(weights)


def _clipped(evidence: Evidence, event: MechanismEvent, message: Message) -> Moves:
    """Return a client's move, shortened where the server shortens it."""
    moves, norm = joint_move(evidence, message)
    if not clips_later(evidence) or norm <= event.clip_norm:
        return moves
    return {name: tensor * event.clip_norm / norm for name, tensor in moves.items()}
