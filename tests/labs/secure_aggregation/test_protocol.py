"""What honest parties compute, and what they refuse."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit_labs.secure_aggregation import protocol as client
from privaudit_labs.secure_aggregation.packets import (
    MASKED,
    SERVER,
    SIGNED,
    STAGES,
    Fault,
    Packet,
    Party,
    Roster,
)
from privaudit_labs.secure_aggregation.primitives import (
    FixedPoint,
    KeyedSecrets,
    SystemSecrets,
    agree,
    combine,
    key_pair,
    pair_mask,
    self_mask,
)
from privaudit_labs.secure_aggregation.protocol import (
    ProtocolOutcome,
    aggregate,
    threshold_of,
)
from tests.labs.secure_aggregation.bounds import (
    error_of_sum,
    most_colluders,
)
from tests.labs.secure_aggregation.conftest import (
    FIVE,
    THREE,
    Change,
    altered,
    decoded,
    flipped,
    identities_of,
    summed,
)


def test_three_clients_sum_up_by_hand() -> None:
    outcome = summed(THREE)
    assert decoded(outcome, 3) == [1.75, 4.0]
    assert outcome.survivors == (0, 1, 2)
    assert outcome.faults == ()


def test_two_clients_masks_are_put_on_by_hand() -> None:
    """The first adds what both agreed on, the second takes it off; and its own."""
    outcome = summed([[1.0], [2.0]])
    codes = FixedPoint(2, 64, 8.0).encode(np.array([1.0, 2.0]))
    first, second = (KeyedSecrets.of_seed(Seeds(0), 0, name) for name in ("c0", "c1"))
    private, _ = key_pair(first("mask key", 16))
    _, public = key_pair(second("mask key", 16))
    shared = pair_mask(agree(private, public), codes[:1], "", 1, 0)
    sent = [p.arrays["masked"] for p in outcome.packets if p.kind == "masked"]
    own = [self_mask(entropy("own mask", 16), codes[:1]) for entropy in (first, second)]
    assert (sent[0] == codes[:1] + own[0] + shared).all()
    assert (sent[1] == codes[1:] + own[1] - shared).all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_sum_is_the_plain_one_to_the_stated_error(data: st.DataObject) -> None:
    clients = data.draw(st.integers(2, 7))
    numbers = st.lists(st.floats(-8, 8), min_size=3, max_size=3)
    updates = data.draw(st.lists(numbers, min_size=clients, max_size=clients))
    outcome = summed(updates, seed=data.draw(st.integers(0, 10)))
    error = Fraction(error_of_sum(FixedPoint(clients, 64, 8.0)))
    for found, column in zip(
        decoded(outcome, clients), zip(*updates, strict=True), strict=True
    ):
        rounding = abs(Fraction(found)) / 2**53  # of the result, to float64
        exact = sum(map(Fraction, column))
        assert abs(Fraction(found) - exact) <= error + rounding


def test_half_the_bytes_give_a_coarser_sum() -> None:
    outcome = summed(THREE, bits=32)
    assert outcome.total is not None
    code = FixedPoint(3, 32, 8.0)
    found = code.decode(outcome.total)
    np.testing.assert_allclose(found, [1.75, 4.0], atol=error_of_sum(code))
    sent = [p.arrays["masked"].nbytes for p in outcome.packets if p.kind == "masked"]
    assert sent == [8, 8, 8]


def test_equal_seeds_give_equal_packets_and_others_do_not() -> None:
    def sent(seed: int) -> list[bytes]:
        packets = summed(THREE, seed=seed).packets
        return [a.tobytes() for p in packets for a in p.arrays.values()]

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


def test_the_operating_systems_randomness_does_as_well() -> None:
    code = FixedPoint(3, 64, 8.0)
    codes = [code.encode(np.array(update)) for update in THREE]
    own = [SystemSecrets()] * 3
    runs = [aggregate(codes, identities_of(3), own, code) for _ in range(2)]
    totals = [run.total for run in runs]
    assert totals[0] is not None
    assert totals[1] is not None
    assert code.decode(totals[0]).tolist() == [1.75, 4.0]
    assert (totals[0] == totals[1]).all()
    first, second = (next(p for p in r.packets if p.kind == "masked") for r in runs)
    assert (first.arrays["masked"] != second.arrays["masked"]).any()


def test_a_sum_over_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="over 1 client was requested"):
        summed([[1.0]])


@pytest.mark.parametrize("parties", range(2, 40))
def test_two_thresholds_of_clients_share_more_than_a_third(parties: int) -> None:
    threshold = threshold_of(parties)
    assert 2 * parties / 3 < threshold <= parties
    most = most_colluders(parties, threshold)
    assert most in (parties // 3, parties // 3 + 1)
    assert 2 * threshold > parties + most


def test_clients_without_keys_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 clients were listed with 2 keys"):
        Roster((b"a", b"b", b"a"), "")


NEVER = len(STAGES)
UPDATES = np.array([[2.0**i, -(3.0**i) / 100] for i in range(5)])
"""No two groups of clients have the same sum."""


def run(pattern: tuple[int, ...]) -> ProtocolOutcome:
    lost = {client: stage for client, stage in enumerate(pattern) if stage < NEVER}
    return summed(UPDATES[: len(pattern)].tolist(), largest=32.0, lost=lost)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("first", range(NEVER + 1))
def test_the_sum_is_of_those_who_sent_or_nothing_is_revealed(first: int) -> None:
    """All 6^4 patterns, in six parts."""
    for rest in product(range(NEVER + 1), repeat=3):
        assert_right((first, *rest))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_so_it_is_with_five_clients_where_patterns_are_drawn() -> None:
    """A third of them stay to the end, or most patterns would be aborted."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        drawn = rng.integers(0, 3 * NEVER // 2 + 1, size=5)
        assert_right(tuple(np.minimum(drawn, NEVER).tolist()))


def assert_right(pattern: tuple[int, ...]) -> None:
    outcome, threshold = run(pattern), threshold_of(len(pattern))
    senders = [c for c, stage in enumerate(pattern) if stage > MASKED]
    at_the_end = sum(stage == NEVER for stage in pattern)
    if at_the_end >= threshold:
        assert outcome.survivors == tuple(senders)
        assert outcome.total is not None
        code = FixedPoint(len(pattern), 64, 32.0)
        found = code.decode(outcome.total)
        plain = UPDATES[senders].sum(axis=0)
        assert np.abs(found - plain).max() <= error_of_sum(code), pattern
    else:
        assert outcome.total is None
        assert outcome.survivors == ()
        assert outcome.why_aborted.startswith("too few survivors (")
        assert_hidden(outcome, threshold)


def assert_hidden(outcome: ProtocolOutcome, threshold: int) -> None:
    """Nobody revealed enough for one own mask: every masked update stays masked."""
    revealed = [p for p in outcome.packets if p.kind == "revealed-shares"]
    assert len(revealed) < threshold


def test_who_is_lost_after_sending_is_in_the_sum() -> None:
    outcome = run((SIGNED, NEVER, NEVER, NEVER, NEVER))
    assert outcome.survivors == (0, 1, 2, 3, 4)


def test_the_outcome_says_how_many_were_left() -> None:
    assert run((0, 4, 5, 5)).why_aborted == "too few survivors (2 of 3)"
    assert run((3, 4, 5, 5, 5)).why_aborted == "too few survivors (3 of 4)"
    assert run((0, 0, 0, 0, 0)).why_aborted == "too few survivors (0 of 4)"


SEVEN = [*FIVE, [0.0, 0.0], [0.0, 0.0]]
IDENTITIES = identities_of(7)
_, OF_CLIENT_2 = key_pair(KeyedSecrets.of_seed(Seeds(0), 0, "c2")("sealing key", 16))


def signed(client: Party, keys: np.ndarray) -> np.ndarray:
    """Return what a client signs of its keys."""
    roster = Roster(tuple(identity.public for identity in IDENTITIES), "")
    text = roster.keys_text(client, keys.tobytes())
    return np.frombuffer(IDENTITIES[client].sign(text), dtype=np.uint8)


def resigned(client: Party, change: Change) -> Callable[[Packet], Packet]:
    """Return a carrier by which a client signs other keys, and sees its own listed."""
    kept: dict[str, np.ndarray] = {}

    def sign(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        kept.update({name: array.copy() for name, array in arrays.items()})
        changed = dict(change(arrays))
        return changed | {"signature": signed(client, changed["keys"])}

    def back(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        row = arrays["clients"].tolist().index(client)
        arrays["keys"][row], arrays["signatures"][row] = kept["keys"], kept["signature"]
        return arrays

    def carry(packet: Packet) -> Packet:
        packet = altered("keys", sign, sender=client)(packet)
        return altered("keys", back, sender=SERVER, to=client)(packet)

    return carry


LOW_ORDER = Fault(1, "a public key of it is of low order")
ONE_KEY = (
    "two clients advertised one public key"  # which has copied it, nobody can tell
)


@pytest.mark.parametrize(
    ("key", "faults"),
    [
        (bytes(32), [LOW_ORDER]),
        ((1).to_bytes(32, "little"), [LOW_ORDER]),
        (None, [Fault(1, "its two public keys are one")]),
        (OF_CLIENT_2, [Fault(None, ONE_KEY, about=client) for client in (1, 2)]),
    ],
)
@pytest.mark.parametrize("first", [0, 32], ids=["sealing", "masking"])
def test_a_key_of_low_order_or_twice_takes_its_clients_out(
    key: bytes | None, faults: list[Fault], first: int
) -> None:
    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        keys = arrays["keys"]
        other = keys[32 - first : 64 - first].tobytes()
        keys[first : first + 32] = np.frombuffer(key or other, dtype=np.uint8)
        return arrays

    outcome = summed(SEVEN, carry=resigned(1, change))
    assert outcome.faults == tuple(faults)
    there = [0, 2, 3, 4, 5, 6] if len(faults) == 1 else [0, 3, 4, 5, 6]
    assert outcome.survivors == tuple(there)
    assert decoded(outcome, 7) == np.sum([SEVEN[c] for c in there], axis=0).tolist()


def without_a_key(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    arrays["keys"][2, :32] = 0
    return arrays


def with_a_key_twice(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Client 2 is on the server's side."""
    arrays["keys"][2, :32] = arrays["keys"][1, :32]
    arrays["signatures"][2] = signed(2, arrays["keys"][2])
    return arrays


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (without_a_key, "its list has keys that their owner disowns"),
        (with_a_key_twice, "its list has a public key twice"),
        (flipped("keys", 0, 0), "its list lacks a client's own keys"),
    ],
)
def test_keys_in_the_servers_list_that_nobody_signed_are_noticed(
    change: Change, what: str
) -> None:
    outcome = summed(SEVEN, carry=altered("keys", change, sender=SERVER, to=0))
    assert outcome.total is None
    assert outcome.faults == (Fault(SERVER, what, accuser=0),)


@pytest.mark.parametrize(
    ("name", "what"),
    [("sealed", "cannot be opened"), ("digests", "has another digest")],
)
def test_a_dealer_of_wrong_shares_is_named(name: str, what: str) -> None:
    """Row 1 of client 3 is for client 1."""
    outcome = summed(FIVE, carry=altered("shares", flipped(name, 1, 3), sender=3))
    assert outcome.total is None
    found = Fault(3, f"a share that it sealed {what}", accuser=1)
    assert outcome.faults == (found,)
    assert not any(p.kind == "revealed-shares" for p in outcome.packets)


@pytest.mark.parametrize("row", [0, 2])
def test_who_reveals_a_wrong_share_is_named_and_not_needed(row: int) -> None:
    change = flipped("self_masks", row, 5)
    outcome = summed(FIVE, carry=altered("revealed-shares", change, sender=1))
    assert decoded(outcome, 5) == [3.75, 5.0]
    what = "a share that it revealed is wrong"
    assert outcome.faults == (Fault(1, what, about=row),)


def test_a_wrong_share_of_a_lost_clients_key_is_named_too() -> None:
    carry = altered("revealed-shares", flipped("mask_keys", 0, 0), sender=2)
    outcome = summed([*FIVE, [0.0, 0.0], [0.0, 0.0]], carry=carry, lost={4: 2})
    assert decoded(outcome, 7) == [5.75, 4.0]
    assert [(f.client, f.about) for f in outcome.faults] == [(2, 4)]


def revealing_wrong(rows: Mapping[Party, int]) -> Callable[[Packet], Packet]:
    """Return a carrier by which clients reveal one wrong share each."""

    def carry(packet: Packet) -> Packet:
        for sender, row in rows.items():
            change = flipped("self_masks", row, 0)
            packet = altered("revealed-shares", change, sender=sender)(packet)
        return packet

    return carry


def test_too_many_wrong_shares_abort_the_round() -> None:
    outcome = summed(FIVE, carry=revealing_wrong({0: 0, 1: 0, 2: 0}))
    assert outcome.total is None
    assert outcome.why_aborted == "too few survivors (2 of 4)"
    assert [fault.client for fault in outcome.faults] == [0, 1, 2]


def test_a_round_aborted_for_faults_may_still_give_its_sum_to_a_server() -> None:
    """Each of two reveals one wrong share, so four good ones of each are left."""
    outcome = summed(FIVE, carry=revealing_wrong({0: 0, 1: 1}))
    assert outcome.total is None
    up = [p for p in outcome.packets if p.receiver == SERVER]
    total = sum(
        (p.arrays["masked"] for p in up if p.kind == "masked"), np.zeros(2, np.uint64)
    )
    shown = {
        p.sender: p.arrays["self_masks"] for p in up if p.kind == "revealed-shares"
    }
    for dealer in range(5):
        good = [holder for holder in range(5) if holder != dealer or dealer > 1][-4:]
        shares = {holder: shown[holder][dealer].tobytes() for holder in good}
        total = total - self_mask(combine(shares), total)
    expected = [sum(column) for column in zip(*FIVE, strict=True)]
    assert FixedPoint(5, 64, 8.0).decode(total).tolist() == expected


def test_who_deals_shares_of_another_secret_is_named() -> None:
    """The commitment is to one own mask, what is shared and put on is another."""
    outcome = summed(SEVEN, carry=resigned(2, flipped("keys", 70)))
    assert outcome.total is None
    what = "the shares that it dealt do not make up its secret"
    assert outcome.faults[-1] == Fault(2, what)


def test_masks_that_do_not_cancel_are_noticed_and_nobody_is_blamed() -> None:
    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return {"masked": arrays["masked"] * np.uint64(3)}

    outcome = summed(
        [[0.1] * 8] * 4, carry=altered("masked", change, sender=2), largest=1.0
    )
    assert outcome.total is None
    assert outcome.faults == (
        Fault(None, "the masks do not cancel: a masked update does not fit"),
    )


def test_a_poisoned_update_under_honest_masks_is_not_noticed() -> None:
    """No sum can tell; clipping before it, or proofs of range, would bound it."""
    outcome = summed([*THREE[:2], [-8.0, 8.0]])
    assert decoded(outcome, 3) == [-7.25, 9.0]
    assert outcome.faults == ()


CLIENTS, LENGTH, SEEDS = 4, 50, 60
ALPHA = 1e-4
Codes = NDArray[np.uint64]


def updates(scale: float = 1.0) -> NDArray[np.float64]:
    return scale * np.random.default_rng(7).normal(size=(CLIENTS, LENGTH))


def uploads_of_all(numbers: NDArray[np.float64]) -> Codes:
    """Return what each client sends under each seed, [clients, seeds, length]."""
    sent = np.empty((CLIENTS, SEEDS, LENGTH), dtype=np.uint64)
    for seed in range(SEEDS):
        for packet in summed(numbers.tolist(), seed=seed).packets:
            if packet.kind == "masked":
                sent[packet.sender, seed] = packet.arrays["masked"]
    return sent


def uploads(numbers: NDArray[np.float64]) -> Codes:
    """Return what client 1 sends under each seed, [seeds, length]."""
    return uploads_of_all(numbers)[1]


def unmasked(numbers: NDArray[np.float64], client: int = 1) -> Codes:
    code = FixedPoint(CLIENTS, 64, 8.0)
    return np.stack([code.encode(numbers[client])] * SEEDS)


@pytest.fixture(scope="module")
def masked_of_all() -> Codes:
    return uploads_of_all(updates())


@pytest.fixture(scope="module")
def masked(masked_of_all: Codes) -> Codes:
    return masked_of_all[1]


def p_of_bytes(codes: Codes, place: int) -> float:
    """Chi-square of one byte of all numbers against equal counts of 256 values."""
    counts = np.bincount(codes.view(np.uint8).reshape(-1, 8)[:, place], minlength=256)
    return float(stats.chisquare(counts).pvalue)


def p_of_bits(codes: Codes) -> float:
    """The smallest binomial p of 64 bits being one half the time, times 64."""
    bits = np.unpackbits(codes.view(np.uint8).reshape(-1, 8), axis=1)
    ones, count = bits.sum(axis=0), len(bits)
    return 64 * min(stats.binomtest(int(k), count).pvalue for k in ones)


def p_of_size(codes: Codes) -> float:
    """Kolmogorov and Smirnov against uniform numbers."""
    return float(stats.kstest(codes.ravel() / 2.0**64, "uniform").pvalue)


def p_of_neighbours(codes: Codes) -> float:
    """Correlation of a number with the next one of the same upload."""
    shares = codes / 2.0**64
    return float(stats.pearsonr(shares[:, :-1].ravel(), shares[:, 1:].ravel()).pvalue)


def p_between(one: Codes, other: Codes) -> float:
    """Two-sample Kolmogorov and Smirnov, the smallest of all places, times them."""
    pairs = zip(one.T / 2.0**64, other.T / 2.0**64, strict=True)
    return LENGTH * min(stats.ks_2samp(a, b).pvalue for a, b in pairs)


@pytest.mark.parametrize("place", range(8))
def test_every_byte_is_uniform(masked: Codes, place: int) -> None:
    assert p_of_bytes(masked, place) > ALPHA
    assert p_of_bytes(unmasked(updates()), place) < ALPHA


@pytest.mark.parametrize("measure", [p_of_bits, p_of_size, p_of_neighbours])
def test_bits_sizes_and_neighbours_are_as_of_uniform_numbers(
    masked: Codes, measure: object
) -> None:
    assert callable(measure)
    assert measure(masked) > ALPHA
    if measure is not p_of_neighbours:  # independent updates are uncorrelated, too
        assert measure(unmasked(updates())) < ALPHA


@pytest.mark.parametrize("known", ["self_mask", "pair_mask"])
def test_either_kind_of_mask_hides_alone(
    monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """A server learns survivors' own masks, or the pair masks of those who are lost."""

    def nothing(_: bytes, like: Codes, *__: object) -> Codes:
        return np.zeros_like(like)

    monkeypatch.setattr(client, known, nothing)
    assert p_of_bits(uploads(updates())) > ALPHA
    for other in ("self_mask", "pair_mask"):
        monkeypatch.setattr(client, other, nothing)
    assert p_of_bits(uploads(updates())) < ALPHA


def test_neighbours_would_show_a_mask_that_is_used_for_all_numbers() -> None:
    rng = np.random.default_rng(1)
    one_mask = rng.integers(0, 2**64, size=(SEEDS, 1), dtype=np.uint64)
    assert p_of_neighbours(unmasked(updates()) + one_mask) < ALPHA


def test_an_upload_is_the_same_whatever_it_masks(masked: Codes) -> None:
    """Another update of the same client, with other seeds' masks in between."""
    other = uploads(np.vstack([updates()[:1], 5 * np.ones((1, LENGTH)), updates()[2:]]))
    assert p_between(masked[: SEEDS // 2], other[SEEDS // 2 :]) > ALPHA
    plain = unmasked(updates()), unmasked(5 * np.ones((CLIENTS, LENGTH)))
    assert p_between(*plain) < ALPHA


def test_an_upload_moves_with_its_update_under_the_same_masks_only(
    masked: Codes,
) -> None:
    """The difference of two updates under one seed's masks is that of the updates.

    So masks of equal seeds must never meet two updates: rounds have masks of their own.
    """
    other = uploads(updates(2.0))
    code = FixedPoint(CLIENTS, 64, 8.0)
    found = code.decode((other - masked).ravel()).reshape(SEEDS, LENGTH)
    np.testing.assert_allclose(found, np.stack([updates()[1]] * SEEDS), atol=1e-9)


def test_even_the_sum_of_all_but_one_stays_masked(masked_of_all: Codes) -> None:
    """Pair masks with the one that is missing do not cancel."""
    sums = masked_of_all[:-1].sum(axis=0)
    assert p_of_size(sums) > ALPHA
    assert p_of_bits(sums) > ALPHA


def test_uploads_of_seeds_and_clients_are_not_alike(masked_of_all: Codes) -> None:
    assert len(np.unique(masked_of_all)) == masked_of_all.size
