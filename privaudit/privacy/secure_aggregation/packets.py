"""Packets that parties of the protocol send, and the faults that they can have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Int32, Shaped, UInt, UInt8

Party = int  # the position of a client among those who were asked to take part
SERVER: Party = -1
PacketKind = Literal[
    "keys", "shares", "masked", "complaint", "survivors", "signature", "signatures",
    "revealed-shares",
]  # fmt: skip
Codes = UInt[np.ndarray, " n"]
Table = Mapping[Party, bytes]
Arrays = Mapping[str, Shaped[np.ndarray, "..."]]
Form = tuple[type[Any], tuple[int, ...]]  # of an array: the type of numbers, the shape
STAGES: tuple[PacketKind, ...] = (
    "keys", "shares", "masked", "signature", "revealed-shares",
)  # fmt: skip
"""What a client sends, in this order; it can be lost before any of them."""
KEYS, SHARES, MASKED, SIGNED, REVEALED = range(len(STAGES))
POSITION = np.int32  # 16 bits would end at client 32,767


@dataclass(frozen=True)
class Packet:
    """What one party, a client or the ``SERVER``, sends to another."""

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


def positions(clients: Sequence[Party]) -> Int32[np.ndarray, " clients"]:
    """Return a list of clients as it is sent."""
    return np.array(clients, dtype=POSITION)


def as_list(**tables: Table) -> Arrays:
    """Return tables of the same clients as a list that the server sends."""
    clients = sorted(next(iter(tables.values())))
    rows = {
        name: np.stack([np.frombuffer(table[c], dtype=np.uint8) for c in clients])
        for name, table in tables.items()
    }
    return {"clients": positions(clients), **rows}


def has_form(arrays: Arrays, **forms: Form) -> bool:
    """Say whether a packet holds these arrays in these forms, and no others."""
    return arrays.keys() == forms.keys() and all(
        arrays[name].dtype == kind and arrays[name].shape == shape
        for name, (kind, shape) in forms.items()
    )


def read_list(
    arrays: Arrays, parties: int, **widths: int
) -> tuple[list[Party], list[dict[Party, bytes]]]:
    """Return whom a server's list names, and a table for each array beside the names.

    It holds "clients", in rising order, of so many that were asked, and rows of bytes for
    each of them, of the ``widths`` that are given by name.

    Raises:
        FaultError: It has another form, or names clients that cannot be.
    """
    named = arrays.get("clients", positions([]))
    forms = {name: (np.uint8, (named.size, width)) for name, width in widths.items()}
    if not has_form(arrays, clients=(POSITION, (named.size,)), **forms):
        raise FaultError(SERVER, "a list of it has another form")
    clients = named.tolist()
    if clients != sorted(set(clients)) or not all(c in range(parties) for c in clients):
        raise FaultError(SERVER, "a list of it names clients that cannot be")
    tables = [
        {c: row.tobytes() for c, row in zip(clients, arrays[name], strict=True)}
        for name in widths
    ]
    return clients, tables
