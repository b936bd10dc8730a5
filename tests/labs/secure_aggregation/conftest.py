from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from privaudit.core.seeds import Seeds
from privaudit_labs.secure_aggregation import protocol
from privaudit_labs.secure_aggregation.packets import (
    Identity,
    MaskingGraph,
    Packet,
    Party,
    Roster,
)
from privaudit_labs.secure_aggregation.primitives import (
    FixedPoint,
    KeyedSecrets,
    agree,
)
from privaudit_labs.secure_aggregation.protocol import ProtocolOutcome, aggregate

THREE = [[0.5, -1.0], [0.25, 2.0], [1.0, 3.0]]
FIVE = [*THREE, [4.0, 0.0], [-2.0, 1.0]]
Change = Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]
Updates = Sequence[Sequence[float]]
Summed = Callable[..., ProtocolOutcome]


def identities_of(count: int, run: int = 0) -> list[Identity]:
    """Return long-term keys that say whose they are."""
    return [Identity(bytes([run, 7]) + i.to_bytes(30)) for i in range(count)]


def summed(
    updates: Updates,
    *,
    bits: int = 64,
    largest: float = 8.0,
    seed: int = 0,
    label: str = "",
    graph: MaskingGraph | None = None,
    lost: dict[int, int] | None = None,
    carry: Callable[[Packet], Packet] = lambda packet: packet,
) -> ProtocolOutcome:
    """Run the protocol on updates that are written out."""
    code = FixedPoint(len(updates), 64 if bits == 64 else 32, largest)
    entropies = [
        KeyedSecrets.of_seed(Seeds(seed), 0, f"c{i}") for i in range(len(updates))
    ]
    codes = [code.encode(np.array(update, dtype=np.float64)) for update in updates]
    identities = identities_of(len(updates))
    others: dict[str, Any] = {"label": label, "graph": graph, "lost": lost}
    return aggregate(codes, identities, entropies, code, carry=carry, **others)


def decoded(
    outcome: ProtocolOutcome, parties: int, largest: float = 8.0
) -> list[float]:
    assert outcome.total is not None
    return FixedPoint(parties, 64, largest).decode(outcome.total).tolist()


def altered(
    kind: str, change: Change, *, sender: Party | None = None, to: Party | None = None
) -> Callable[[Packet], Packet]:
    """Return a carrier that alters one party's packets of one kind."""

    def carry(packet: Packet) -> Packet:
        mine = sender in (None, packet.sender) and to in (None, packet.receiver)
        if packet.kind != kind or not mine:
            return packet
        arrays = {name: array.copy() for name, array in packet.arrays.items()}
        return replace(packet, arrays=change(arrays))

    return carry


def flipped(name: str, *place: int) -> Change:
    """Return a change of one bit."""

    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        arrays[name][place] ^= 1
        return arrays

    return change


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute what depends on equal seeds alone once for many runs of the protocol."""
    for name in ("key_pair", "derive", "split", "seal", "unseal"):
        monkeypatch.setattr(protocol, name, cache(getattr(protocol, name)))
    shared: dict[tuple[int, bytes], bytes] = {}
    kept = []

    def agree_once(private: object, public: bytes) -> bytes:
        kept.append(private)  # so that no other object gets its address
        key = (id(private), public)
        if key not in shared:
            shared[key] = agree(private, public)  # type: ignore[arg-type]
        return shared[key]

    monkeypatch.setattr(protocol, "agree", agree_once)
    monkeypatch.setattr(protocol, "is_low_order", lambda public: False)
    monkeypatch.setattr(Identity, "sign", cache(Identity.sign))
    monkeypatch.setattr(Roster, "has_signed", cache(Roster.has_signed))
