"""Sums on a graph: the same numbers as over all pairs, whoever is lost, and when."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from privaudit.privacy.secure_aggregation.graph import Density, MaskingGraph
from privaudit.privacy.secure_aggregation.packets import (
    MASKED,
    REVEALED,
    SERVER,
    SHARES,
    SIGNED,
    STAGES,
)
from privaudit.privacy.secure_aggregation.protocol import ProtocolOutcome
from tests.privaudit.privacy.secure_aggregation.conftest import decoded, summed

NEVER, PARTIES = len(STAGES), 12
GRAPH = MaskingGraph.drawn(PARTIES, Density(6, 5), bytes(32))
UPDATES = np.array([[2.0**i, -(3.0**i) / 4096] for i in range(PARTIES)])
"""No two groups of clients have the same sum."""


def run(
    pattern: tuple[int, ...], graph: MaskingGraph | None = GRAPH
) -> ProtocolOutcome:
    lost = {client: stage for client, stage in enumerate(pattern) if stage < NEVER}
    return summed(UPDATES.tolist(), largest=4096.0, lost=lost, graph=graph)


def fewest(there: set[int], whose: set[int]) -> int:
    return min((len(there & {*GRAPH.near(c)}) for c in whose), default=0)


def comes_about(pattern: tuple[int, ...]) -> bool:
    """Say whether each one's secrets have a threshold of holders at every step."""
    sent = [{c for c, lost in enumerate(pattern) if lost > s} for s in range(NEVER)]
    shared = sent[SHARES]
    needs = [(sent[0], sent[0]), *((sent[s], shared) for s in range(SHARES, NEVER))]
    return all(fewest(there, whose) >= 5 for there, whose in needs)


@pytest.mark.usefixtures("quick")
def test_the_sum_is_of_those_who_sent_or_nothing_is_revealed() -> None:
    rng, sums = np.random.default_rng(0), 0
    for _ in range(50):
        lost = rng.random(PARTIES) < 0.15
        pattern = tuple(np.where(lost, rng.integers(0, NEVER, PARTIES), NEVER).tolist())
        outcome, whole = run(pattern), comes_about(pattern)
        assert (outcome.total is not None) == whole
        sums += whole
        if whole:
            senders = [c for c, stage in enumerate(pattern) if stage > MASKED]
            assert outcome.survivors == tuple(senders)
            found = decoded(outcome, PARTIES, 4096.0)
            np.testing.assert_allclose(found, UPDATES[senders].sum(axis=0), atol=1e-9)
        else:
            assert outcome.why_aborted.startswith("too few survivors (")
            assert_hidden(outcome)
    assert 10 < sums < 45


def assert_hidden(outcome: ProtocolOutcome) -> None:
    """No one upload is there for which, and for all connected, own masks are known."""
    senders = {p.sender for p in outcome.packets if p.kind == "masked"}
    answers = {p.sender for p in outcome.packets if p.kind == "revealed-shares"}
    bare = {c for c in senders if fewest(answers, {c}) >= 5}
    while bound := {c for c in bare if ({*GRAPH.near(c)} & senders) - bare}:
        bare -= bound
    assert not bare


@pytest.mark.parametrize("stage", range(NEVER))
def test_one_lost_at_each_step_leaves_the_sum_of_all_pairs(stage: int) -> None:
    pattern = tuple(stage if c == 4 else NEVER for c in range(PARTIES))
    sparse, dense = run(pattern), run(pattern, None)
    assert sparse.survivors == dense.survivors
    assert (4 in sparse.survivors) == (stage > MASKED)
    assert sparse.total is not None
    assert dense.total is not None
    assert (sparse.total == dense.total).all()  # integers


def test_a_neighbourhood_that_is_gone_aborts_the_round_though_most_are_there() -> None:
    """Three of six neighbours and a client itself; all pairs bear as many of twelve."""
    gone = [c for c in GRAPH.near(0) if c][:3]
    pattern = tuple(SIGNED if c in gone else NEVER for c in range(PARTIES))
    assert run(pattern).why_aborted == "too few survivors (4 of 5)"
    assert run(pattern, None).total is not None


def test_packets_are_of_neighbours_only() -> None:
    outcome = run((NEVER,) * PARTIES)
    for packet in outcome.packets:
        if packet.sender == SERVER and packet.kind != "survivors":
            near = {*GRAPH.near(packet.receiver)}
            asked = near - {packet.receiver} if packet.kind == "shares" else near
            assert set(packet.arrays["clients"].tolist()) == asked
        elif packet.kind == "shares":
            assert packet.arrays["sealed"].shape == (6, 48)
            assert packet.arrays["digests"].shape == (7, 32)
        elif packet.kind == "revealed-shares":
            assert packet.arrays["self_masks"].shape == (7, 16)


def hkdf(secret: bytes, purpose: str) -> bytes:
    return HKDF(SHA256(), 32, b"privaudit", purpose.encode()).derive(secret)


def stream(key: bytes) -> NDArray[np.uint64]:
    """Return two numbers of a key stream."""
    encryptor = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(encryptor.update(bytes(16)), "<u8")


def test_the_sum_is_what_the_formulas_make_of_the_packets() -> None:
    """Shares are joined by PyCryptodome, masks made of them by OpenSSL.

    Total = uploads - PRG(b_u) of survivors u - the masks of survivors with those gone.
    """
    shamir = pytest.importorskip("Crypto.Protocol.SecretSharing").Shamir
    pattern = tuple(
        {3: MASKED, 8: MASKED, 6: REVEALED}.get(c, NEVER) for c in range(12)
    )
    outcome = run(pattern)
    packets = [p for p in outcome.packets if p.receiver == SERVER]
    keys = {p.sender: p.arrays["keys"].tobytes() for p in packets if p.kind == "keys"}
    uploads = {p.sender: p.arrays["masked"] for p in packets if p.kind == "masked"}
    gone = sorted(set(keys) - set(uploads))
    shares: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for packet in packets:
        if packet.kind == "revealed-shares":
            near = GRAPH.near(packet.sender)
            for name, whose in (("self_masks", uploads), ("mask_keys", gone)):
                dealers = [c for c in near if c in whose]
                for dealer, row in zip(dealers, packet.arrays[name], strict=True):
                    place = (packet.sender + 1, row.tobytes())
                    shares.setdefault((name, dealer), []).append(place)
    secrets = {secret: shamir.combine(held[:5]) for secret, held in shares.items()}
    total = sum(uploads.values(), np.zeros(2, np.uint64))
    for client in uploads:
        total = total - stream(hkdf(secrets["self_masks", client], "own mask"))
    for client in gone:
        seed = hkdf(secrets["mask_keys", client], "private key")
        private = X25519PrivateKey.from_private_bytes(seed)
        for peer in set(GRAPH.near(client)) & set(uploads):
            public = X25519PublicKey.from_public_bytes(keys[peer][32:64])
            pair = f"pair mask||{min(client, peer)}|{max(client, peer)}"
            mask = stream(hkdf(private.exchange(public), pair))
            total = total - mask if peer < client else total + mask
    assert outcome.total is not None
    assert gone == [3, 8]
    assert (total == outcome.total).all()
