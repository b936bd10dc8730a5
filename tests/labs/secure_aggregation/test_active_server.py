"""A server that lies, alone and with clients on its side, uncovers nobody; and the
control, without the check that stops it, does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from privaudit_labs.secure_aggregation import protocol
from privaudit_labs.secure_aggregation.packets import (
    KEYS,
    REVEALED,
    SERVER,
    SIGNED,
    Arrays,
    Fault,
    FaultError,
    Identity,
    Party,
    Roster,
    positions,
)
from privaudit_labs.secure_aggregation.primitives import KEY, pair_mask, self_mask
from privaudit_labs.secure_aggregation.protocol import (
    Client,
    ProtocolOutcome,
    threshold_of,
)
from tests.labs.secure_aggregation.active_server import ActiveServer
from tests.labs.secure_aggregation.bounds import most_colluders
from tests.labs.secure_aggregation.conftest import (
    FIVE,
    Change,
    altered,
    decoded,
    flipped,
    identities_of,
    summed,
)

MAJORITY = [parties // 2 + 1 for parties in range(21)]


class Trusting(Client):
    """A client without the consistency round: it reveals to whoever asks."""

    def _check_agreement(self, signatures: Mapping[Party, bytes]) -> None:
        pass


def survivor_lists(server: ActiveServer, *, by_keys: bool = False) -> bool:
    """Say whether the last client is uncovered by a list of survivors for each other.

    It is shown that few shared secrets with it. All others are shown lists with it, and
    without some of those few.
    """
    victim = server.parties - 1
    others = [c for c in server.honest if c != victim]
    near = server.roster.among(victim, range(server.parties))
    few = [c for c in [*server.colluders, *others] if c in near][: server.threshold - 1]
    shown_to = {victim: [*few, victim]}
    if by_keys:
        server.collect(keys_shown=shown_to)
    else:
        server.collect(sharers_shown=shown_to)
    without = dict.fromkeys((c for c in few if c in others), 0)
    lists: dict[Party, list[Party]] = {}
    for asked in [*others, victim]:
        held = set(server.clients[asked]._held)
        out = sorted(held & set(without) - {asked}, key=lambda c: without[c])
        for one in out[: len(held) - server.threshold]:
            without[one] += 1
            held.remove(one)
        lists[asked] = sorted(held)
    signatures = server.signatures(lists)
    for asked, shown in lists.items():
        theirs = {c: s for c, s in signatures.items() if c in shown}
        server.ask(asked, theirs | server.colluders_signatures(asked))
    return server.unmasked(victim)


@pytest.mark.parametrize("parties", range(2, 21))
def test_a_list_of_survivors_for_each_client_uncovers_nobody(parties: int) -> None:
    server = ActiveServer(parties, threshold_of(parties))
    assert not survivor_lists(server)
    if parties > 3:  # else a threshold is all of them, and the lists are one
        assert not server.shares  # nobody revealed a thing


@pytest.mark.parametrize("parties", [5, 7, 10, 12])
def test_a_majority_without_the_consistency_round_is_uncovered(parties: int) -> None:
    """Must succeed: the protocol as it was. The round alone stops it, too."""
    assert survivor_lists(ActiveServer(parties, MAJORITY[parties], make=Trusting))
    assert not survivor_lists(ActiveServer(parties, MAJORITY[parties]))


@pytest.mark.parametrize("parties", [7, 8, 10, 13])
def test_the_threshold_alone_does_not_stop_a_server_with_colluders(
    parties: int,
) -> None:
    """With as many clients on its side as are covered."""
    threshold = threshold_of(parties)
    some = range(most_colluders(parties, threshold))
    assert survivor_lists(ActiveServer(parties, threshold, some, Trusting))
    assert not survivor_lists(ActiveServer(parties, threshold, some))


@pytest.mark.parametrize("parties", [10, 13])
def test_nor_does_a_list_of_keys_for_each_client(parties: int) -> None:
    threshold = threshold_of(parties)
    some = range(most_colluders(parties, threshold))
    control = ActiveServer(parties, threshold, some, Trusting)
    assert survivor_lists(control, by_keys=True)
    assert not survivor_lists(ActiveServer(parties, threshold, some), by_keys=True)


def two_lists(parties: int, colluders: int) -> bool:
    """Say whether a client is uncovered by two lists, each signed by all it can be.

    One half of the honest clients is shown itself and the colluders, the other half
    likewise: one list gives the victim's own mask, the other the rest of its half.
    """
    threshold = threshold_of(parties)
    server = ActiveServer(parties, threshold, range(colluders))
    server.collect()
    half = threshold - colluders
    first, second = server.honest[:half], server.honest[half:]
    for group in (first, second):
        filling = [c for c in first[1:] if c not in group]  # of a list that is short
        shown = [*server.colluders, *group]
        shown = sorted(shown + filling[: max(0, threshold - len(shown))])
        signed = server.signatures(dict.fromkeys(group, shown))
        signed |= server.colluders_signatures(group[0])
        for asked in group:
            server.ask(asked, signed)
    return server.unmasked(first[0])


@pytest.mark.parametrize("parties", range(4, 21))
def test_colluders_up_to_the_bound_uncover_nobody_and_one_more_does(
    parties: int,
) -> None:
    most = most_colluders(parties, threshold_of(parties))
    assert not two_lists(parties, most)
    assert two_lists(parties, most + 1)


class Unchecking(Client):
    """A client that takes any keys that the server says are others'."""

    def _check_keys(self, keys: object, signatures: object) -> None:
        pass


def in_the_middle(make: type[Client]) -> bool:
    """Say whether a server that is every other client to its victim uncovers it."""
    server = ActiveServer(4, threshold_of(4), range(1, 4), make)
    for fake in server.clients[1:]:
        fake._identity = Identity(bytes([fake.me]) * 32)  # all that it can sign with
    server.collect()
    return server.unmasked(0)


def test_a_server_in_the_middle_needs_keys_that_nobody_signed() -> None:
    assert in_the_middle(Unchecking)
    with pytest.raises(FaultError, match="keys that their owner disowns"):
        in_the_middle(Client)


class Copying(Unchecking):
    """A client that advertises another one's key, written in its second way."""

    copied = bytes(KEY)

    @property
    def _advertised(self) -> bytes:
        copied = self.copied[:-1] + bytes([self.copied[-1] | 0x80])
        return self._sealing_public + copied + super()._advertised[2 * KEY :]


def copied_keys() -> bool:
    """Say whether colluders take off a client's pair masks by copies of their keys.

    X25519 ignores the highest bit. The victim is shown that only the colluders, all of
    lower number, and those that they copy, of higher number, shared secrets with it.
    """
    some, victim = range(most_colluders(10, 7)), 3
    server = ActiveServer(10, 7, some, lambda me, *a: (Copying, Client)[me > 2](me, *a))
    for one in some:
        copied = server.clients[victim + 1 + one]._masking_public
        server.clients[one].copied = copied  # type: ignore[attr-defined]
    server.collect(sharers_shown={victim: range(7)})
    asked = [c for c in server.honest if c != victim]
    signed = server.signatures({c: [*range(10)] for c in asked})
    signed |= server.colluders_signatures(asked[0])
    assert all(server.ask(c, signed) for c in asked)
    own = server._secret("own mask", victim)
    assert own is not None
    left = server.uploads[victim] - self_mask(own, server.uploads[victim])
    error = np.abs(server.code.decode(left) - server.updates[victim])
    return bool((error <= server.code.step).all())


def test_copied_keys_cancel_no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not copied_keys()

    def of_no_pair(shared: bytes, like: Any, label: str, *pair: Party) -> Any:
        return pair_mask(shared, like, label, 0, 0)

    monkeypatch.setattr(protocol, "pair_mask", of_no_pair)
    assert copied_keys()


def test_a_signature_is_of_one_round_run_and_list_of_clients() -> None:
    """Equal keys and lists: what differs is the label, or a client that is asked."""
    identities = identities_of(5)
    publics = tuple(identity.public for identity in identities)
    here = Roster(publics[:4], "run 1, round 1")
    lists: Any = {c: bytes([c]) * 80 for c in range(4)}, [0, 1, 2, 3], [0, 1, 2]
    for other in (
        Roster(publics[:4], "run 1, round 0"),
        Roster(publics[:4], "run 0, round 1"),
        Roster(publics, "run 1, round 1"),
        Roster((*publics[1:4], publics[0]), "run 1, round 1"),
    ):
        for text, replayed in (
            (here.lists_text(*lists), other.lists_text(*lists)),
            (here.keys_text(0, b"keys"), other.keys_text(0, b"keys")),
        ):
            assert here.has_signed(0, text, identities[0].sign(text))
            assert not here.has_signed(0, text, identities[0].sign(replayed))
            assert not here.has_signed(1, text, identities[0].sign(text))


def test_each_list_is_part_of_what_is_signed() -> None:
    roster = Roster((b"a", b"b", b"c", b"d"), "")
    keys = {c: bytes([c]) * 80 for c in range(4)}
    texts = {
        roster.lists_text(keys, [0, 1, 2, 3], [0, 1, 2, 3]),
        roster.lists_text(keys, [0, 1, 2, 3], [0, 1, 2]),
        roster.lists_text(keys, [0, 1, 2], [0, 1, 2]),
        roster.lists_text({**keys, 3: keys[2]}, [0, 1, 2], [0, 1, 2]),
        roster.lists_text({c: keys[c] for c in range(3)}, [0, 1, 2], [0, 1, 2]),
    }
    assert len(texts) == 5


def ready(stage: int) -> ActiveServer:
    """Return a server of four clients that have taken the steps before one of them."""
    server = ActiveServer(4, 3)
    if stage > KEYS:
        server.collect()
    if stage > SIGNED:
        server.signatures({c: [0, 1, 2, 3] for c in range(4)})
    return server


@pytest.mark.parametrize(
    "shown",
    [[0, 1], [0, 1, 1], [1, 0, 2], [0, 1, 2, 7], [1, 2, 3]],
    ids=["too few", "one twice", "out of order", "a stranger", "not itself"],
)
def test_a_list_of_survivors_that_cannot_be_is_not_signed(shown: list[Party]) -> None:
    one = ready(SIGNED).clients[0]
    with pytest.raises(FaultError, match="its list of survivors"):
        one.sign(shown)
    with pytest.raises(FaultError, match="out of order"):
        one.sign([0, 1, 2, 3])  # whoever found a fault stops


def test_each_step_is_taken_once_and_in_its_order() -> None:
    asks: list[Callable[[Client], Arrays]] = [
        lambda one: one.advertise(),
        lambda one: one.share_out({}, {}),
        lambda one: one.mask(np.zeros(10, np.uint64), {}, {}),
        lambda one: one.sign([0, 1, 2]),
    ]
    for ask in asks:
        with pytest.raises(FaultError, match="a step out of order"):
            ask(ready(REVEALED).clients[0])
    with pytest.raises(FaultError, match="a step out of order"):
        ready(KEYS).clients[0].reveal({})


def signed_by(change: Change) -> ProtocolOutcome:
    """Run the protocol where the server alters the signatures that it sends on."""
    return summed(FIVE, carry=altered("signatures", change, sender=SERVER, to=2))


def rows(places: list[int], clients: list[Party] | None = None) -> Change:
    """Return a change that sends the signatures at some places, in others' names."""

    def change(arrays: dict[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        named = arrays["clients"][places] if clients is None else positions(clients)
        return {"clients": named, "signatures": arrays["signatures"][places]}

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (rows([0, 1, 2]), "too few signed its list of survivors"),
        (rows([0, 1, 2, 2]), "a list of it names clients that cannot be"),
        (rows([0, 1, 2, 2], [0, 1, 2, 3]), "clients signed other lists, or none"),
        (rows([1, 0, 2, 3], [0, 1, 2, 3]), "clients signed other lists, or none"),
        (flipped("signatures", 1, 9), "clients signed other lists, or none"),
        (flipped("signatures", 1, 60), "clients signed other lists, or none"),
    ],
    ids=["fewer than t", "one twice", "under another name", "swapped", "R", "S"],
)
def test_signatures_that_do_not_prove_a_threshold_reveal_nothing(
    change: Change, what: str
) -> None:
    outcome = signed_by(change)
    assert outcome.faults == (Fault(SERVER, what, accuser=2),)
    answers = [p.sender for p in outcome.packets if p.kind == "revealed-shares"]
    assert answers == [0, 1]


def test_who_is_not_in_the_sum_has_no_say_on_it() -> None:
    """A lost client's signature, on the very list that it is not on, does not count."""
    server = ready(SIGNED)
    signed = server.signatures({c: [0, 1, 2] for c in range(3)})
    text = server.clients[0]._lists_text()
    signed[3] = server.identities[3].sign(text)
    assert not server.ask(0, signed)
    assert server.ask(1, {c: signed[c] for c in (0, 1, 2)})


def test_a_client_that_signs_something_else_is_named_and_left_out() -> None:
    carry = altered("signature", flipped("signature", 9), sender=3)
    outcome = summed(FIVE, carry=carry)
    assert decoded(outcome, 5) == [3.75, 5.0]  # its update arrived before
    assert outcome.faults == (Fault(3, "it did not sign the lists that it was sent"),)
    shown = {p.sender for p in outcome.packets if p.kind == "revealed-shares"}
    assert shown == {0, 1, 2, 4}


def test_keys_under_another_signature_take_their_client_out() -> None:
    """Those of an earlier round, or with one bit changed."""
    earlier = summed(FIVE, label="round 0", seed=1).packets
    old = next(p for p in earlier if p.kind == "keys" and p.sender == 1)
    for change in (lambda arrays: old.arrays, flipped("keys", 70)):
        carry = altered("keys", change, sender=1, to=SERVER)
        outcome = summed(FIVE, label="round 1", carry=carry)
        assert outcome.survivors == (0, 2, 3, 4)
        assert outcome.faults == (Fault(1, "its keys do not bear its signature"),)
