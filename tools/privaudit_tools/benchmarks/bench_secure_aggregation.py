"""Time and bytes of a masked sum, against a plain sum and against other ways to mask.

Run by ``make bench``. All clients and the server run in one process, one after the
other, so a client's own share of the time is about 1 / clients of it. The plain sum is
of float64 arrays. Masks are compared as such: the key streams that all clients together
draw and add, by ChaCha20 as here, by numpy's PCG64 (fast, and not meant to be secret),
and by Flower's SecAgg+ where flwr is installed (``pip install flwr``).
"""

import importlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from numpy.typing import NDArray

from privaudit.core.seeds import Seeds
from privaudit_labs.secure_aggregation.packets import (
    MASKED,
    SERVER,
    Arrays,
    Assumptions,
    Identity,
    MaskingGraph,
    Roster,
    Wire,
    sparsest,
)
from privaudit_labs.secure_aggregation.primitives import (
    SEED,
    FixedPoint,
    KeyedSecrets,
    combine,
    self_mask,
    split,
    unseal,
)
from privaudit_labs.secure_aggregation.protocol import (
    Client,
    Held,
    ProtocolOutcome,
    Server,
    _Run,
    aggregate,
    threshold_of,
)
from privaudit_tools.benchmarks.measuring import machine, spread, timed
from tests.labs.secure_aggregation.bounds import error_of_sum

LENGTH, PASSES = 100_000, 3
SHORT = 10_000  # numbers, where clients are many
FLOWER = "flwr.common.secure_aggregation.secaggplus_utils"


@pytest.mark.parametrize(("clients", "bits"), [(10, 64), (100, 64), (100, 32)])
def test_a_masked_sum_against_a_plain_one(clients: int, bits: int) -> None:
    header, rng = machine(), np.random.default_rng(0)
    updates = rng.normal(size=(clients, LENGTH)).clip(-8, 8)
    code = FixedPoint(clients, 64 if bits == 64 else 32, 8.0)
    lost = dict.fromkeys(range(clients // 10), MASKED)
    rows = [
        (
            timed(partial(updates.sum, axis=0)),
            timed(partial(masked, updates, code, {})),
            timed(partial(masked, updates, code, lost)),
        )
        for _ in range(PASSES)
    ]
    outcome = rows[0][1].result
    plain, whole, some = ([row[i].seconds for row in rows] for i in range(3))
    error = np.abs(code.decode(outcome.total) - rows[0][0].result).max()
    sent = sum(a.nbytes for p in outcome.packets for a in p.arrays.values())
    print(
        f"\n{header}\n{clients} clients, {LENGTH:,} numbers, {bits} bits: plain sum "
        f"{spread(plain)} s; masked {spread(whole)} s, all clients and the server, "
        f"{min(whole) / min(plain):.0f} times as long; with {len(lost)} lost "
        f"{spread(some)} s\nlargest error {error:.2g}, bound {error_of_sum(code):.2g}; "
        f"{sent / clients / LENGTH / 4:.2f} times the bytes of float32 updates"
    )
    assert error <= error_of_sum(code) + 1e-12


@pytest.mark.parametrize("clients", [10, 100])
def test_masks_against_other_key_streams(clients: int) -> None:
    like = np.zeros(LENGTH, dtype=np.uint64)
    streams: dict[str, Callable[[int], NDArray[np.uint64]]] = {
        "ChaCha20, as here": lambda i: self_mask(i.to_bytes(16, "big"), like),
        "numpy's PCG64": _by_numpy,
    }
    try:
        with warnings.catch_warnings(action="ignore"):
            flower = importlib.import_module(FLOWER)
    except ImportError:
        print("\nflwr is not installed: its masks are left out")
    else:
        streams["Flower's SecAgg+"] = lambda i: flower.pseudo_rand_gen(
            i.to_bytes(32, "big"), 2**32, [(LENGTH,)]
        )[0].astype(np.uint64)
    count = clients * clients  # own masks, and each pair's at both ends
    seconds: dict[str, list[float]] = {name: [] for name in streams}
    for _ in range(PASSES):
        for name, stream in streams.items():
            once = timed(partial(_add_all, stream, min(count, 200)))
            seconds[name].append(once.seconds * count / min(count, 200))
    ours = min(seconds["ChaCha20, as here"])
    for name, values in seconds.items():
        print(
            f"{clients} clients' masks by {name}: {spread(values)} s, "
            f"{min(values) / ours:.2f} times ours"
        )


@pytest.mark.parametrize("clients", [10, 100])
def test_sharing_against_pycryptodome(clients: int) -> None:
    threshold, secret = threshold_of(clients), os.urandom(16)
    random = os.urandom(16 * (threshold - 1))
    rows = []
    for _ in range(PASSES):
        ours = timed(partial(split, secret, threshold, range(clients), random))
        theirs = timed(partial(Shamir.split, threshold, clients, secret))
        some = {i: ours.result[i] for i in range(threshold)}
        pairs = [(i + 1, share) for i, share in some.items()]
        back, again = (
            timed(partial(combine, some)),
            timed(partial(Shamir.combine, pairs)),
        )
        assert back.result == again.result == secret
        rows.append([one.seconds for one in (ours, theirs, back, again)])
    split_ours, split_theirs, back_ours, back_theirs = map(min, zip(*rows, strict=True))
    print(
        f"\n{threshold} of {clients} shares: split {1e3 * split_ours:.3g} ms, "
        f"PyCryptodome {split_theirs / split_ours:.1f} times; combine "
        f"{1e3 * back_ours:.3g} ms (weights kept), PyCryptodome "
        f"{back_theirs / back_ours:.1f} times"
    )


@pytest.mark.parametrize("clients", [10, 100, 300, 1000])
@pytest.mark.parametrize("pairs", ["passive", "active", "all"])
def test_a_graph_against_all_pairs(clients: int, pairs: str) -> None:
    """All pairs of a thousand would take half an hour: one client is whole there."""
    density = None
    if pairs != "all":
        density = sparsest(clients, Assumptions(pairs))  # type: ignore[arg-type]
    rng, code = np.random.default_rng(0), FixedPoint(clients, 64, 8.0)
    updates = rng.normal(size=(clients, SHORT)).clip(-8, 8)
    codes = [code.encode(update) for update in updates]
    identities = [Identity(i.to_bytes(32)) for i in range(clients)]
    graph = None
    if density is not None:
        graph = MaskingGraph.drawn(clients, density, bytes(32))
    publics = tuple(identity.public for identity in identities)
    roster = Roster(publics, "", graph)
    threshold = density.threshold if density else threshold_of(clients)
    make: list[type[Client]] = [Client] * clients
    if pairs == "all" and clients > 300:
        make[1:] = [Sparing] * (clients - 1)
    everyone = [
        make[i](
            i, identity, roster, threshold, KeyedSecrets.of_seed(Seeds(0), 0, f"c{i}")
        )
        for i, identity in enumerate(identities)
    ]
    Sparing.everyone = everyone
    server, wire = Server(roster, threshold, codes[0]), Wire({}, lambda packet: packet)
    parties: list[Client | Server] = [*everyone, server]
    seconds = [watched(party) for party in parties]
    run = _Run(server, everyone, codes, wire)
    total = code.decode(run.all_rounds(code))
    bytes_of = {True: 0, False: 0}
    for packet in wire.packets:
        size = sum(array.nbytes for array in packet.arrays.values())
        bytes_of[packet.receiver == SERVER] += size
    *by_client, by_server = map(sum, seconds)
    by_client = [t for t, kind in zip(by_client, make, strict=True) if kind is Client]
    print(
        f"\n{clients} clients, {SHORT:,} numbers, {pairs}: "
        f"{density or f'all pairs, threshold {threshold}'}; a client sends "
        f"{bytes_of[True] / clients / 1e3:.1f} kB and gets "
        f"{bytes_of[False] / clients / 1e3:.1f} kB; it takes "
        f"{1e3 * float(np.median(by_client)):.3g} ms, the server {by_server:.3g} s"
    )
    assert np.abs(total - updates.sum(axis=0)).max() <= error_of_sum(code) + 1e-12


class Sparing(Client):
    """A client as client 0 and the server see it, that spares the rest.

    It gives every holder the secret itself, a polynomial without slope; it seals and
    masks for client 0 only, since masks of the others with each other cancel; and it
    checks nothing.
    """

    everyone: ClassVar[Sequence[Client]] = ()

    def _check_keys(self, keys: object, signatures: object) -> None:
        pass

    def _check_agreement(self, signatures: object) -> None:
        pass

    def _deal(self) -> dict[int, Held]:
        return dict.fromkeys(self._keys, Held(self._mask_seed, self._self_seed))

    def _sealing_key(self, sender: int, receiver: int) -> bytes:
        if 0 in (sender, receiver):
            return super()._sealing_key(sender, receiver)
        return bytes(32)

    def _take(self, sealed: Mapping[int, bytes], digests: Mapping[int, bytes]) -> None:
        opened = unseal(self._sealing_key(0, self.me), sealed[0])
        assert opened is not None
        self._held[0] = Held(opened[:SEED], opened[SEED:])

    def mask(self, codes: Any, sealed: Any, digests: Any) -> Arrays:
        masked = super().mask(codes, sealed, digests)
        for other in self.everyone[1:]:
            self._held[other.me] = Held(other._mask_seed, other._self_seed)
        return masked


def watched(party: Client | Server) -> list[float]:
    """Return what the calls of a party take in seconds, as they are made."""
    spent: list[float] = []

    def call(step: Callable[..., Any], *words: Any) -> Any:
        took = timed(partial(step, *words))
        spent.append(took.seconds)
        return took.result

    for name, step in vars(type(party)).items():
        if callable(step) and not name.startswith("_"):
            setattr(party, name, partial(call, getattr(party, name)))
    return spent


def masked(
    updates: NDArray[np.float64], code: FixedPoint, lost: dict[int, int]
) -> ProtocolOutcome:
    """Run the whole protocol."""
    seeds = Seeds(0)
    entropies = [KeyedSecrets.of_seed(seeds, 0, f"c{i}") for i in range(len(updates))]
    identities = [Identity(i.to_bytes(32)) for i in range(len(updates))]
    codes = [code.encode(update) for update in updates]
    return aggregate(codes, identities, entropies, code, lost=lost)


def _by_numpy(number: int) -> NDArray[np.uint64]:
    return np.random.default_rng(number).integers(
        0, 2**64, size=LENGTH, dtype=np.uint64
    )


def _add_all(stream: Callable[[int], NDArray[np.uint64]], count: int) -> None:
    total = np.zeros(LENGTH, dtype=np.uint64)
    for number in range(count):
        total += stream(number)
