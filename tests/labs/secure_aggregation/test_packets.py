"""Packets in forms that no honest party sends: at every step, and from every side."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit_labs.secure_aggregation.masking import Masking, masked_sum
from privaudit_labs.secure_aggregation.packets import (
    SERVER,
    STAGES,
    FaultError,
    Identity,
    Packet,
    PacketKind,
    Roster,
    as_list,
    positions,
    read_list,
)
from privaudit_labs.secure_aggregation.primitives import FixedPoint, KeyedSecrets
from privaudit_labs.secure_aggregation.protocol import Client, Server, threshold_of
from tests.labs.secure_aggregation.conftest import Change, altered

NAMES = tuple("abcde")
UPLOADS = {name: {"x": torch.tensor([2.0**i, -i])} for i, name in enumerate(NAMES)}
UP = {
    "keys": ("keys", "signature"),
    "shares": ("sealed", "digests"),
    "masked": ("masked",),
    "signature": ("signature",),
    "revealed-shares": ("self_masks", "mask_keys"),
}
DOWN = {
    "keys": ("clients", "keys", "signatures"),
    "shares": ("clients", "sealed", "digests"),
    "survivors": ("clients",),
    "signatures": ("clients", "signatures"),
}
TWISTS: dict[str, Callable[[np.ndarray], np.ndarray | None]] = {
    "missing": lambda array: None,
    "floats": lambda array: array.astype(np.float64),
    "signed": lambda array: array.astype(np.int8),
    "other bytes' order": lambda array: array.astype(">u8"),
    "words": lambda array: array.astype(str),
    "objects": lambda array: array.astype(object),
    "one axis more": lambda array: array[None],
    "one row more": lambda array: np.concatenate([array, array[:1], array[:1]]),
    "no rows": lambda array: array[:0],
    "one number": lambda array: np.zeros((), array.dtype),
    "huge": lambda array: np.zeros((1, 200_000), array.dtype),
}
NO_CLIENTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "negative": lambda array: array - 1,
    "beyond the last": lambda array: array + 4,
    "one twice": lambda array: array * 0 + array[0],
    "falling": lambda array: array[::-1],
    "far out": lambda array: array + 2**30,
}


def twisted(name: str, twist: Callable[[np.ndarray], np.ndarray | None]) -> Change:
    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        array = twist(arrays.pop(name))
        return arrays if array is None else {**arrays, name: array}

    return change


def with_one_more(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    return {**arrays, "more": np.zeros(3)}


def cases(packets: Mapping[str, tuple[str, ...]]) -> Iterator[object]:
    """Name each change of each array of each kind of packet."""
    for kind, names in packets.items():
        for name, (how, twist) in product(names, TWISTS.items()):
            if name != "mask_keys" or "row" not in how:  # it has none: nobody is lost
                yield pytest.param(
                    kind, twisted(name, twist), id=f"{kind} {name} {how}"
                )
        yield pytest.param(kind, lambda arrays: {}, id=f"{kind} empty")
        yield pytest.param(kind, with_one_more, id=f"{kind} one more")


def lists_that_cannot_be() -> Iterator[object]:
    for kind, (how, twist) in product(DOWN, NO_CLIENTS.items()):
        yield pytest.param(kind, twisted("clients", twist), id=f"{kind} {how}")


def test_every_kind_of_packet_is_here() -> None:
    assert tuple(UP) == STAGES
    assert {*UP, *DOWN, "complaint"} == set(get_args(PacketKind))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("kind", "change"), list(cases(UP)))
def test_a_client_whose_packet_has_another_form_is_named_and_left_out(
    kind: str, change: Change
) -> None:
    """Its update is in the sum if it came before."""
    carry = altered(kind, change, sender=2)
    found = masked_sum(UPLOADS, Masking(), Seeds(0), 0, carry=carry)
    (fault,) = found.report["faults"]
    assert fault.startswith("c: it")
    late = kind in ("signature", "revealed-shares")
    assert found.survivors == (NAMES if late else ("a", "b", "d", "e"))
    assert found.total is not None
    assert found.total["x"].tolist() == ([31.0, -10.0] if late else [27.0, -8.0])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("kind", "change"), [*cases(DOWN), *lists_that_cannot_be()])
def test_a_server_whose_packet_has_another_form_is_named_by_its_client(
    kind: str, change: Change
) -> None:
    carry = altered(kind, change, sender=SERVER, to=2)
    found = masked_sum(UPLOADS, Masking(), Seeds(0), 0, carry=carry)
    assert found.total is None
    assert found.report["outcome"] == "aborted, a message does not fit"
    (fault,) = found.report["faults"]
    assert fault.startswith("server: ")
    assert fault.endswith(", says c")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("change", [lambda arrays: {}, twisted("clients", np.sin)])
def test_a_complaint_in_another_form_is_one(change: Change) -> None:
    def carry(packet: Packet) -> Packet:
        packet = altered("survivors", lambda arrays: {}, to=2)(packet)
        return altered("complaint", change)(packet)

    found = masked_sum(UPLOADS, Masking(), Seeds(0), 0, carry=carry)
    assert found.report["outcome"] == "aborted, a message does not fit"


def any_array(rng: np.random.Generator) -> np.ndarray:
    """Return random bytes as numbers of any type, in any shape."""
    kind, shape = (
        rng.choice([*"?bhilqBHILQefdgFD"]),
        rng.integers(5, size=rng.integers(4)),
    )
    count = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(rng.bytes(count), dtype=kind).reshape(shape)


def test_any_list_is_read_or_refused() -> None:
    """Half of the arrays are in the form that is asked for."""
    rng, read = np.random.default_rng(0), 0
    for _ in range(2000):
        some = np.flatnonzero(rng.random(5) < 0.5)
        right = {
            "clients": positions(some.tolist()),
            "keys": rng.integers(256, size=(len(some), 3), dtype=np.uint8),
        }
        arrays = {
            name: array if rng.random() < 0.5 else any_array(rng)
            for name, array in right.items()
            if rng.random() < 0.9
        }
        try:
            clients, (keys,) = read_list(arrays, 5, keys=3)
        except FaultError:
            continue
        read += 1
        assert [*keys] == clients == sorted(set(clients))
        assert set(clients) <= set(range(5))
    assert 200 < read < 1000


MANY = 40_000
FEW = (0, 1, 32_767, 32_768, 39_998, 39_999)


def test_clients_beyond_16_bits_have_positions() -> None:
    rows = {client: client.to_bytes(4) for client in range(MANY)}
    clients, (read,) = read_list(as_list(keys=rows), MANY, keys=4)
    assert clients == [*range(MANY)]
    assert read == rows
    assert positions([2**31 - 1]).tolist() == [2**31 - 1]


def test_six_of_forty_thousand_clients_sum_up() -> None:
    """All are on the roster, with keys; a threshold of five stands for 26,667."""
    identities = {client: Identity(client.to_bytes(32)) for client in FEW}
    publics = [client.to_bytes(32) for client in range(MANY)]
    for client, identity in identities.items():
        publics[client] = identity.public
    roster, code = Roster(tuple(publics), ""), FixedPoint(MANY)
    codes = {client: code.encode(np.array([float(client), 0.5])) for client in FEW}
    clients = [
        Client(c, identities[c], roster, 5, KeyedSecrets.of_seed(Seeds(0), 0, f"c{c}"))
        for c in FEW
    ]
    server = Server(roster, 5, codes[0])
    for one in clients:
        server.accept_keys(one.me, one.advertise())
    widths = {"keys": 80, "signatures": 64}
    _, lists = read_list(server.list_keys(one.me), MANY, **widths)
    for one in clients:
        server.accept_shares(one.me, one.share_out(*lists))
    for one in clients[:-1]:  # the last is lost
        _, shares = read_list(server.forward(one.me), MANY, sealed=48, digests=32)
        server.accept_masked(one.me, one.mask(codes[one.me], *shares))
    survivors, _ = read_list(server.list_survivors(), MANY)
    for one in clients[:-1]:
        server.accept_signature(one.me, one.sign(survivors))
    _, signatures = read_list(server.list_signatures(one.me), MANY, signatures=64)
    for one in clients[:-1]:
        server.accept_revealed(one.me, one.reveal(*signatures))
    total = server.unmask()
    assert not server.faults
    assert total is not None
    assert code.decode(total).tolist() == [float(sum(FEW[:-1])), 2.5]
    assert threshold_of(MANY) == 26_667
