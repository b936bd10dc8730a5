"""What is found out of a party that does not follow the protocol, and what is not."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from privaudit.privacy.secure_aggregation.identities import Roster
from privaudit.privacy.secure_aggregation.masks import self_mask
from privaudit.privacy.secure_aggregation.packets import SERVER, Fault, Packet, Party
from privaudit.privacy.secure_aggregation.sharing import combine
from tests.privaudit.privacy.secure_aggregation.conftest import (
    FIVE,
    THREE,
    Change,
    altered,
    decoded,
    flipped,
    identities_of,
    summed,
)

ROSTER = Roster(tuple(identity.public for identity in identities_of(5)), "")

LOW_ORDER = [bytes(32), (1).to_bytes(32, "little")]


def resigned(client: Party, change: Change) -> Callable[[Packet], Packet]:
    """Return a carrier by which a client signs other keys, and sees its own listed."""
    own = identities_of(5)[client]
    kept: dict[str, np.ndarray] = {}

    def signed(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        kept.update({name: array.copy() for name, array in arrays.items()})
        changed = dict(change(arrays))
        text = ROSTER.keys_text(client, changed["keys"].tobytes())
        return changed | {"signature": np.frombuffer(own.sign(text), dtype=np.uint8)}

    def back(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        row = arrays["clients"].tolist().index(client)
        arrays["keys"][row], arrays["signatures"][row] = kept["keys"], kept["signature"]
        return arrays

    def carry(packet: Packet) -> Packet:
        packet = altered("keys", signed, sender=client)(packet)
        return altered("keys", back, sender=SERVER, to=client)(packet)

    return carry


@pytest.mark.parametrize("key", LOW_ORDER)
@pytest.mark.parametrize("first", [0, 32], ids=["sealing", "masking"])
def test_a_key_of_low_order_takes_its_client_out(key: bytes, first: int) -> None:
    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        arrays["keys"][first : first + 32] = np.frombuffer(key, dtype=np.uint8)
        return arrays

    outcome = summed(FIVE, carry=resigned(1, change))
    assert outcome.survivors == (0, 2, 3, 4)
    assert outcome.faults == (Fault(1, "a public key of it is of low order"),)
    assert decoded(outcome, 5) == [3.5, 3.0]


def test_a_key_in_the_servers_list_that_nobody_signed_is_noticed() -> None:
    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        arrays["keys"][2, :32] = 0
        return arrays

    outcome = summed(FIVE, carry=altered("keys", change, sender=SERVER, to=0))
    assert outcome.total is None
    what = "its list has keys that their owner disowns"
    assert outcome.faults == (Fault(SERVER, what, accuser=0),)


def test_ones_own_keys_must_be_in_the_list() -> None:
    change = flipped("keys", 0, 0)
    outcome = summed(FIVE, carry=altered("keys", change, sender=SERVER, to=0))
    assert outcome.faults == (
        Fault(SERVER, "its list lacks a client's own keys", accuser=0),
    )


@pytest.mark.parametrize(
    ("kind", "name", "place", "what"),
    [
        ("shares", "sealed", (1, 3), "a share that it sealed cannot be opened"),
        ("shares", "digests", (1, 3), "a share that it sealed has another digest"),
    ],
)
def test_a_dealer_of_wrong_shares_is_named(
    kind: str, name: str, place: tuple[int, int], what: str
) -> None:
    """Row 1 of client 3 is for client 1."""
    outcome = summed(FIVE, carry=altered(kind, flipped(name, *place), sender=3))
    assert outcome.total is None
    assert outcome.faults == (Fault(3, what, accuser=1),)
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


def test_too_many_wrong_shares_abort_the_round() -> None:
    def carry(packet: Packet) -> Packet:
        for sender in (0, 1, 2):
            change = flipped("self_masks", 0, 0)
            packet = altered("revealed-shares", change, sender=sender)(packet)
        return packet

    outcome = summed(FIVE, carry=carry)
    assert outcome.total is None
    assert outcome.why_aborted == "too few survivors (2 of 4)"
    assert [fault.client for fault in outcome.faults] == [0, 1, 2]


def test_a_round_aborted_for_faults_may_still_give_its_sum_to_a_server() -> None:
    """Each of two reveals one wrong share, so four good ones of each are left."""

    def carry(packet: Packet) -> Packet:
        for sender in (0, 1):
            change = flipped("self_masks", sender, 0)
            packet = altered("revealed-shares", change, sender=sender)(packet)
        return packet

    outcome = summed(FIVE, carry=carry)
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
    outcome = summed(FIVE, carry=resigned(2, flipped("keys", 70)))
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


def test_a_masked_update_of_another_form_counts_as_lost() -> None:
    carry = altered("masked", lambda a: {"masked": a["masked"][:1]}, sender=0)
    outcome = summed(FIVE, carry=carry)
    assert outcome.survivors == (1, 2, 3, 4)
    assert decoded(outcome, 5) == [3.25, 6.0]
    assert outcome.faults == (Fault(0, "its masked update has another form"),)


def test_a_poisoned_update_under_honest_masks_is_not_noticed() -> None:
    """No sum can tell; clipping before it, or proofs of range, would bound it."""
    outcome = summed([*THREE[:2], [-8.0, 8.0]])
    assert decoded(outcome, 3) == [-7.25, 9.0]
    assert outcome.faults == ()
