"""A round's messages while they are sent, and how they are written when it ends."""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privaudit.core.errors import ConfigError, shown
from privaudit.core.tensors import Tensors
from privaudit.federated.transcripts.folder import RoundTensors, TranscriptFolder
from privaudit.federated.transcripts.transcript import ChainEnd, Message


class RoundWriter:
    """Holds the messages of one round, and writes them to a transcript.

    Args:
        folder: Of the transcript, which is emptied.

    Attributes:
        number: Of the round.
        messages: Of this round, as far as they were sent.
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

    def hold(self, name: str, value: Any) -> Tensor:
        """Return a tensor as it is now: the federation may go on to change it.

        Raises:
            ConfigError: It is none.
        """
        if self._tensors.holds(value):
            held: Tensor = value
            return held
        try:
            tensor = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{shown(str(name))} was to be recorded, but it is no tensor ({error}). "
                "Give tensors or numeric arrays by name."
            ) from None
        return self._tensors.copy_of(tensor)

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


def check_weight(weight: Any, whose: str) -> None:
    """Refuse what weighs no update.

    Raises:
        ConfigError: It is no finite number of 0 or more.
    """
    try:
        value = float(weight)
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(
            f"The update of {whose} weighs {shown(str(weight))}. A weight is one finite "
            "number, 0 or more."
        )
