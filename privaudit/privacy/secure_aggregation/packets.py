"""What parties of the protocol send one another, and what can be wrong with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Shaped, UInt8

Party = int  # the position of a client among those who were asked to take part
SERVER: Party = -1
PacketKind = Literal[
    "keys", "shares", "masked", "complaint", "survivors", "revealed-shares"
]
Arrays = Mapping[str, Shaped[np.ndarray, "..."]]
STAGES: tuple[PacketKind, ...] = ("keys", "shares", "masked", "revealed-shares")
"""What a client sends, in this order; it can be lost before any of them."""


@dataclass(frozen=True)
class Packet:
    """What one party sends to another.

    Attributes:
        sender: A client, or ``SERVER``.
        receiver: Likewise.
        kind: What it is.
        arrays: By name.
    """

    sender: Party
    receiver: Party
    kind: PacketKind
    arrays: Arrays


Carrier = Callable[[Packet], Packet]
"""What happens to a packet on its way: nothing, or a test's malice."""


@dataclass(frozen=True)
class Fault:
    """Something that a party did and an honest one could not have done.

    Attributes:
        client: Whose fault it is, ``SERVER`` for the server's; None where nobody can
            tell.
        what: In words.
        about: Whose secret was concerned, if another one's was.
        accuser: Who says so, where it is not the server's own finding.
    """

    client: Party | None
    what: str
    about: Party | None = None
    accuser: Party | None = None


class FaultError(Exception):
    """A client's finding that another party's message does not fit."""

    def __init__(self, whose: Party, what: str) -> None:
        super().__init__(what)
        self.whose, self.what = whose, what


@dataclass
class Wire:
    """Carries packets, remembers them, and loses those of clients that are gone.

    Attributes:
        lost: From which stage on a client is gone; not named are those who stay.
        carry: What happens to packets on their way.
        packets: All that were sent, in order.
    """

    lost: Mapping[Party, int]
    carry: Carrier
    packets: list[Packet] = field(default_factory=list)

    def is_there(self, client: Party, stage: int) -> bool:
        """Say whether a client still takes part in a stage."""
        return self.lost.get(client, len(STAGES)) > stage

    def send(self, packet: Packet) -> Packet:
        """Return the packet as its receiver gets it."""
        arrived = self.carry(packet)
        self.packets.append(arrived)
        return arrived


def as_rows(parts: Sequence[bytes], width: int) -> UInt8[np.ndarray, "rows width"]:
    """Return texts of one length as rows."""
    joined = np.frombuffer(b"".join(parts), dtype=np.uint8)
    return joined.reshape(len(parts), width)


def has_shape(array: Shaped[np.ndarray, "..."], *shape: int) -> bool:
    """Say whether an array consists of bytes in this shape."""
    return array.dtype == np.uint8 and array.shape == shape


def positions(clients: Sequence[Party]) -> Shaped[np.ndarray, " clients"]:
    """Return a list of clients as it is sent."""
    return np.array(clients, dtype=np.int16)
