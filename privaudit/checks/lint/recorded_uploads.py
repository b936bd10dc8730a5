"""Uploads of a recorded federation: what they show of clipping and the server's noise.

Its clients are what is protected, and clipped as a whole: all tensors of an update
together. Uploads are models, or the moves from what was received.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from privaudit.checks.lint.evidence import Evidence
from privaudit.core.tensors import Tensors
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import WEIGHT
from privaudit.privacy.events import MechanismEvent
from privaudit.recording.bundle import CLIPPED_BY
from privaudit.recording.recorded_trainer import RecordedTrainer

Moves = Mapping[str, Tensor]
COMPARED = 4096  # numbers of a tensor that are compared with others': all may be many


@dataclass(frozen=True)
class Numbers:
    """What is kept of a tensor."""

    square: float
    values: int
    first: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> "Numbers":
        """Return what is kept, in float64."""
        exact = tensor.double().flatten()
        return cls(float(exact.square().sum()), len(exact), exact[:COMPARED].clone())


@dataclass(frozen=True)
class Upload:
    """By what a recorded upload, or a sum of them, moves the model.

    Attributes:
        sender: Of it, in words.
        rounding: How far it may move by rounding alone: a step for each number.
        voices: How many clients are in it.
    """

    index: int
    sender: str
    moves: Mapping[str, Numbers]
    rounding: float
    voices: int = 1

    @property
    def norm(self) -> float:
        """How far, all tensors together."""
        return math.sqrt(sum(move.square for move in self.moves.values()))


@dataclass(frozen=True)
class ServersNoise:
    """What a server added to the mean of uploads, in units of the heaviest one's move.

    Attributes:
        tensors: The noise by tensor, as far as it is of floating point.
        steps: Between neighbouring numbers of the next model, by tensor, in those units.
    """

    index: int
    event: MechanismEvent
    tensors: Mapping[str, Numbers]
    steps: Mapping[str, float]

    @property
    def std(self) -> float:
        """Its standard deviation, as declared."""
        return self.event.noise_multiplier * self.event.clip_norm


def is_recorded(evidence: Evidence) -> bool:
    """Say whether others trained the federation, and send weighted means."""
    trainer = evidence.trainer
    return isinstance(trainer, RecordedTrainer) and trainer.declared.kind == "mean"


def clips_later(evidence: Evidence) -> bool:
    """Say whether the server clips uploads: they are recorded as they were sent."""
    return evidence.settings.get(CLIPPED_BY) == "server"


def joint_move(evidence: Evidence, message: Message) -> tuple[Moves, float]:
    """Return by what a client moved what it had received, and how far in all.

    A client's messages in a recorded run are models times their weight; one of weight 0
    moves nothing.
    """
    received = evidence.broadcasts.get(message.round, {})
    weight = float(message.tensors[WEIGHT])
    moves = {
        name: tensor.double() / (weight or 1.0)
        - (received[name].double() * bool(weight))
        for name, tensor in message.tensors.items()
        if name in received and received[name].is_floating_point()
    }
    return moves, math.sqrt(sum(float(m.square().sum()) for m in moves.values()))


def steps_of(tensor: Tensor) -> Tensor:
    """Return about how far apart the numbers are that a tensor can hold."""
    if not tensor.is_floating_point():
        return torch.ones_like(tensor, dtype=torch.float64)
    kind = torch.finfo(tensor.dtype)
    return (tensor.double().abs() * kind.eps).clamp(min=kind.smallest_normal)


@lru_cache(maxsize=1)
def recorded_uploads(evidence: Evidence) -> tuple[Upload, ...]:
    """Return all recorded uploads that weigh something, and sums, as far as is kept."""
    return tuple(_recorded_uploads(evidence))


def _recorded_uploads(evidence: Evidence) -> Iterator[Upload]:
    trainer = evidence.trainer
    if not isinstance(trainer, RecordedTrainer):
        return
    for index, messages in sorted(evidence.uploads.items()):
        received = evidence.broadcasts.get(index, {})
        steps = [float(steps_of(t).square().sum()) for t in received.values()]
        for message in messages:
            if float(message.tensors[WEIGHT]):
                moves, _ = joint_move(evidence, message)
                kept, rounding = _kept(moves), math.sqrt(sum(steps))
                yield Upload(index, message.sender, kept, rounding)
    for index, sums in sorted(evidence.sums.items()):
        received = evidence.broadcasts.get(index, {})
        for message, voices in sums:
            if WEIGHT not in message.tensors:
                moves = _summed_moves(message.tensors, received, trainer, len(voices))
                words = f"a sum of {len(voices)}"
                yield Upload(index, words, _kept(moves), 0.0, len(voices))


def _kept(moves: Moves) -> dict[str, Numbers]:
    return {name: Numbers.of(move) for name, move in moves.items()}


def _summed_moves(
    total: Tensors, received: Tensors, trainer: RecordedTrainer, voices: int
) -> Moves:
    """Return the sum of what clients moved, from a sum of models or of differences."""
    is_models = trainer.declared.uploads == "models"
    return {
        name: tensor.double() - voices * is_models * received[name].double()
        for name, tensor in total.items()
        if name in received and tensor.is_floating_point()
    }


def weights_of(messages: Sequence[Message]) -> list[float]:
    """Return what uploads weigh; nothing where one has no weight."""
    weights = [message.tensors.get(WEIGHT) for message in messages]
    return [float(weight) for weight in weights if weight is not None]


@lru_cache(maxsize=1)
def servers_noise(evidence: Evidence) -> tuple[ServersNoise, ...]:
    """Return the noise that the server added: the next broadcast less the mean.

    Of rounds whose next model was broadcast.
    """
    return tuple(_servers_noise(evidence)) if is_recorded(evidence) else ()


def _servers_noise(evidence: Evidence) -> Iterator[ServersNoise]:
    for index, messages in sorted(evidence.uploads.items()):
        step, weights = evidence.server_step(index), weights_of(messages)
        if step is None or not any(weights):
            continue
        event, before, after = step
        moves = [_clipped(evidence, event, message) for message in messages]
        scale = sum(weights) / max(weights)
        noise, steps = dict[str, Numbers](), dict[str, float]()
        for name in before:
            if after[name].is_floating_point():
                mean = sum(
                    w * m[name]
                    for w, m in zip(weights, moves, strict=True)
                    if name in m
                )
                change = after[name].double() - before[name].double()
                noise[name] = Numbers.of((change - mean / sum(weights)) * scale)
                steps[name] = float(steps_of(after[name]).median()) * scale
        yield ServersNoise(index, event, noise, steps)


def _clipped(evidence: Evidence, event: MechanismEvent, message: Message) -> Moves:
    """Return a client's move, shortened where the server shortens it."""
    moves, norm = joint_move(evidence, message)
    if not clips_later(evidence) or norm <= event.clip_norm:
        return moves
    return {name: tensor * event.clip_norm / norm for name, tensor in moves.items()}
