"""Who takes part in a secure sum, who masks with whom, and what parties send one another.

Source of the graph: Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure single-server
aggregation with (poly)logarithmic overhead", CCS 2020: a Harary graph of k on a random
order of the clients, and shares along its edges. The conditions of "passive" are its
definition of a good graph in section 3. Those of "active" are of our own, for clients that
compare what they sign with their neighbours; docs/secure-aggregation.md derives them.
"""

import hashlib
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import pydantic.dataclasses
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from jaxtyping import Int32, Shaped, UInt, UInt8
from pydantic import Field

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream

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


ServerKind = Literal["active", "passive"]
Portion = Annotated[float, Field(ge=0, lt=1)]


@pydantic.dataclasses.dataclass(frozen=True)
class Assumptions:
    """What a graph must withstand.

    Who colludes, and under "passive" who is lost, does not depend on the graph.

    Attributes:
        server: "passive" follows the protocol and reads; "active" breaks every rule,
            and chooses whom it calls lost with the graph before it.
        corrupt: Share of clients that collude with it.
        lost: Share of clients that are lost, for a sum to come about.
        security: No more than 2^-security graphs fail to hide.
        correctness: No more than 2^-correctness graphs leave a client too few
            neighbours.
    """

    server: ServerKind = "active"
    corrupt: Portion = 0.1
    lost: Portion = 0.1
    security: Annotated[int, Field(ge=1, le=100)] = 40
    correctness: Annotated[int, Field(ge=1, le=100)] = 30


@dataclass(frozen=True)
class Density:
    """How many neighbours a client has, and how many it takes to unmask.

    Attributes:
        neighbours: Of each client: an even number.
        threshold: How many, with the client itself, give a secret of it back, and
            have to sign a list before a client acts on it.
    """

    neighbours: int
    threshold: int


@dataclass(frozen=True)
class MaskingGraph:
    """A Harary graph: clients around a ring, each beside as many on either side."""

    order: tuple[Party, ...]
    density: Density

    @classmethod
    def drawn(cls, parties: int, density: Density, seed: bytes) -> "MaskingGraph":
        """Return the graph of a public seed: all orders are equally likely.

        Args:
            parties: How many clients there are, more than neighbours and themselves.
            density: How many are neighbours.
            seed: 32 bytes. Who sets them knowing who colludes sets the neighbours.
        """
        order = Stream(seed).permutation(parties)
        return cls(tuple(order.tolist()), density)

    def near(self, client: Party) -> tuple[Party, ...]:
        """Return a client and its neighbours, in rising order."""
        return self._near[client]

    @property
    def text(self) -> bytes:
        """What signatures are bound to."""
        density = [self.density.neighbours, self.density.threshold]
        return b"graph|" + positions([*density, *self.order]).tobytes()

    @cached_property
    def _near(self) -> dict[Party, tuple[Party, ...]]:
        count, reach = len(self.order), self.density.neighbours // 2
        around = self.order * 3
        return {
            client: tuple(
                sorted(around[count + place - reach : count + place + reach + 1])
            )
            for place, client in enumerate(self.order)
        }


@lru_cache(maxsize=64)
def sparsest(parties: int, assumed: Assumptions) -> Density | None:
    """Return the fewest neighbours that withstand what is assumed, and the threshold.

    None where nothing below all pairs does.

    Example:
        >>> sparsest(100, Assumptions())
        Density(neighbours=42, threshold=33)
        >>> sparsest(100, Assumptions("passive"))
        Density(neighbours=20, threshold=11)
    """
    for neighbours in range(2, parties - 1, 2):
        density = _hiding(parties, neighbours, assumed)
        if stuck(parties, density, assumed) <= 2.0**-assumed.correctness:
            return density
    return None


def _hiding(parties: int, neighbours: int, assumed: Assumptions) -> Density:
    """Return the lowest threshold that hides; above all neighbours if none does."""

    def hides(threshold: int) -> bool:
        density = Density(neighbours, threshold)
        return exposed(parties, density, assumed) <= 2.0**-assumed.security

    above_one = range(2, neighbours + 1)  # below, it would be one's own share
    return Density(neighbours, 2 + bisect_left(above_one, True, key=hides))


def exposed(parties: int, density: Density, assumed: Assumptions) -> float:
    """Return a bound on the chance that a graph does not hide, by the union of events.

    Against a passive server these are that an honest client has a threshold of corrupt
    neighbours, or that honest clients who stay are not connected: then two stretches of
    the ring, of neighbours / 2 clients, are all corrupt or lost.

    Against an active one: that one side of an honest client has threshold - neighbours
    / 2 - 1 corrupt clients or more. Else no choice of whom to call lost parts those
    who are in the sum.
    """
    from scipy.stats import hypergeom  # slow to import

    corrupt = _most(assumed.corrupt, parties)
    half, honest = density.neighbours // 2, parties - corrupt
    if assumed.server == "active":
        most = density.threshold - half - 2
        return 2 * honest * float(hypergeom.sf(most, parties - 1, corrupt, half))
    around = float(
        hypergeom.sf(density.threshold - 1, parties - 1, corrupt, density.neighbours)
    )
    gone = min(parties, corrupt + _most(assumed.lost, parties))
    pairs = math.comb(parties, 2) - parties * half  # of stretches that part a ring
    parted = float(hypergeom.pmf(density.neighbours, parties, gone, density.neighbours))
    return honest * around + pairs * parted


def stuck(parties: int, density: Density, assumed: Assumptions) -> float:
    """Return a bound on the chance that a client has too few neighbours who stay."""
    from scipy.stats import hypergeom  # slow to import

    there = parties - _most(assumed.lost, parties)
    few = hypergeom.cdf(density.threshold - 1, parties - 1, there, density.neighbours)
    return parties * float(few)


def _most(share: float, parties: int) -> int:
    """Return how many clients a share is at most; 0.07 of 100 are 7, not 8."""
    return math.ceil(round(share * parties, 6))


SIGNATURE = 64  # bytes


@dataclass(frozen=True)
class Identity:
    """A client's long-term key for signatures by Ed25519; 32 bytes stand for it."""

    seed: bytes = field(repr=False)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    @property
    def public(self) -> bytes:
        """The key that checks its signatures, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        """Return its signature, the same for the same text."""
        return self._private.sign(text)


@dataclass(frozen=True)
class Roster:
    """Whom a round asks, as each of them knows it before the server says a word.

    It stands for a public-key infrastructure: somebody other than the server vouches
    for it. All of it goes into every signature, so none is good for another run, round,
    number of clients or order of them.

    Attributes:
        keys: Each client's :attr:`Identity.public`, by position.
        label: Of the run and the round; no two rounds have the same.
        graph: Who masks with whom; None if all pairs do. Who vouches for the keys
            draws it, when it stands who takes part.

    Raises:
        ConfigError: Two clients have one key.
    """

    keys: tuple[bytes, ...]
    label: str
    graph: MaskingGraph | None = None

    def __post_init__(self) -> None:
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError(
                f"{len(self.keys)} clients were listed with "
                f"{len(set(self.keys))} keys for signatures. Give each one its own."
            )

    def among(self, client: Party, parties: Collection[Party]) -> list[Party]:
        """Return those who mask with a client, and itself, in rising order."""
        if self.graph is None:
            return sorted(parties)
        return [party for party in self.graph.near(client) if party in parties]

    def fewest(self, there: Collection[Party], whose: Collection[Party]) -> int:
        """Return how many masked with the one of ``whose`` that has the fewest left."""
        if self.graph is None:
            return len(there)
        return min((len(self.among(client, there)) for client in whose), default=0)

    def keys_text(self, client: Party, keys: bytes) -> bytes:
        """Return what a client signs that advertises its keys for a round."""
        return _digest(b"keys", self._context, positions([client]).tobytes(), keys)

    def lists_text(
        self,
        keys: Table,
        shared: Sequence[Party],
        survivors: Sequence[Party],
    ) -> bytes:
        """Return what a client signs before it helps to unmask: all that it received.

        That is who advertised what, who shared out secrets, and whose masked updates
        arrived; on a graph the last only: neighbours receive other keys, and compare
        nevertheless.
        """
        if self.graph is not None:
            keys, shared = {}, ()
        who = [
            positions(sorted(parties)).tobytes()
            for parties in (keys, shared, survivors)
        ]
        advertised = [keys[client] for client in sorted(keys)]
        return _digest(b"lists", self._context, *who, *advertised)

    def has_signed(self, client: Party, text: bytes, signature: bytes) -> bool:
        """Say whether a signature is the client's, and of this text."""
        try:
            key = Ed25519PublicKey.from_public_bytes(self.keys[client])
            key.verify(signature, text)
        except InvalidSignature:
            return False
        return True

    @cached_property
    def _context(self) -> bytes:
        graph = [] if self.graph is None else [self.graph.text]
        return _digest(self.label.encode(), *self.keys, *graph)


def _digest(*parts: bytes) -> bytes:
    """Return the hash of all parts and of where each one ends."""
    ends = b"".join(len(part).to_bytes(8) + part for part in parts)
    return hashlib.sha256(b"privaudit secure sum|" + ends).digest()
