"""A round's messages while they are sent, and how they are written when it ends."""

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privaudit.core.errors import ConfigError, shown
from privaudit.core.limits import check_limit
from privaudit.core.storage import SAFETENSORS_TYPES
from privaudit.core.tensors import Tensors
from privaudit.federated.transcripts.folder import RoundTensors, TranscriptFolder
from privaudit.federated.transcripts.transcript import ChainEnd, Message
from privaudit.recording.bundle import Aggregation

_HEAVIEST = 2.0**63  # of a weight: sums of uploads are made in float32


class RoundWriter:
    """Holds the messages of one round, and writes them to a transcript.

    Args:
        folder: Of the transcript, which is emptied.

    Attributes:
        messages: Of the round ``number``, as far as they were sent.
        end: Of the hash chain, behind what was written.
        seconds: Of each written round, from its first message to its last.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = TranscriptFolder(folder)
        self._folder.clear()
        self.number, self.messages = 0, list[Message]()
        self.end = ChainEnd()
        self.seconds = list[float]()
        self._began = 0.0
        self._tensors = RoundTensors()

    def checked(
        self, client: str, round: int, sent: Any, declared: Aggregation, weight: Any
    ) -> dict[str, Tensor]:
        """Return what a client sent, with its weight, as it is recorded.

        Raises:
            ConfigError: It cannot be read again, weighs nothing that is a number, or is
                the client's second in this round.
        """
        if any(m.sender == client and m.round == round for m in self.messages):
            raise ConfigError("it is the second update in this round")
        held, name = {str(n): one for n, one in sent.items()}, declared.weight
        check_limit(
            "line", sum(100 + 6 * len(n) for n in held), "The list of its arrays"
        )
        if not held:
            raise ConfigError("nothing is in it")
        if name is not None:
            given = held.get(name) if weight is None else weight
            held[name] = torch.tensor(checked_weight(given), dtype=torch.float64)
        return {n: self.hold(n, one) for n, one in held.items()}

    def hold(self, name: str, value: Any) -> Tensor:
        """Return a tensor as it is now: the federation may go on to change it."""
        if self._tensors.holds(value):
            held: Tensor = value
            return held
        try:
            tensor = torch.as_tensor(value).detach().cpu()
            check_limit("tensors", tensor.nbytes, "It")
            if tensor.dtype not in SAFETENSORS_TYPES or tensor.is_complex():
                raise TypeError(f"there are no files of {tensor.dtype}")
            return self._tensors.copy_of(tensor)
        except Exception as error:  # whatever others call a tensor
            raise ConfigError(
                f"{shown(str(name))} was to be recorded, but it is no tensor ({error}). "
                "Give tensors or numeric arrays by name."
            ) from None

    def add(self, message: Message) -> None:
        """Take a message of this round; a broadcast that is repeated counts once."""
        if not self.messages:
            self._began = time.perf_counter()
        twice = message.kind == "broadcast" and any(
            m.kind == message.kind
            and m.receiver == message.receiver
            and are_same(m.tensors, message.tensors)
            for m in self.messages
        )
        if not twice:
            self.messages.append(message)

    def models_of(self, clients: Iterable[str]) -> dict[str, Tensors]:
        """Return what each client was sent in this round.

        Where all who got it got the same, the others have it, too: one global model.
        """
        sent = [m for m in self.messages if m.kind == "broadcast"]
        finals = {m.receiver: m.tensors for m in sent}
        if sent and all(are_same(m.tensors, sent[0].tensors) for m in sent):
            return dict.fromkeys(clients, sent[0].tensors)
        return {client: finals[client] for client in clients if client in finals}

    def write(self) -> None:
        """Write the round, and forget it."""
        if self.messages:
            self.seconds.append(round(time.perf_counter() - self._began, 4))
            self.end = self._folder.write(
                self.number, self.messages, self.end, self._tensors
            )
        self.messages, self._tensors = [], RoundTensors()


def are_same(one: Tensors, other: Tensors) -> bool:
    """Say whether two messages hold the same tensors: equal ones are held once."""
    return one.keys() == other.keys() and all(t is other[n] for n, t in one.items())


def checked_weight(weight: Any) -> float:
    """Return what weighs an update."""
    try:
        value = float(weight)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        value = math.nan
    if not 0 <= value <= _HEAVIEST:
        raise ConfigError(
            f"its weight is {shown(str(weight))}, and should be one finite number, 0 or "
            "more"
        )
    return value
