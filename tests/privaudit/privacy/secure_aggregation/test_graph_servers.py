"""What servers, and neighbours on their side, find out on a graph; and what they do not.

Every attack that fails has a control that succeeds: with a lower threshold, without the
check that stops it, or with one colluder more.
"""

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pytest

from privaudit.privacy.secure_aggregation.client import Client
from privaudit.privacy.secure_aggregation.graph import (
    Assumptions,
    Density,
    MaskingGraph,
    sparsest,
)
from privaudit.privacy.secure_aggregation.identities import Roster
from privaudit.privacy.secure_aggregation.packets import SERVER, FaultError, Packet
from tests.privaudit.privacy.secure_aggregation.active_server import ActiveServer
from tests.privaudit.privacy.secure_aggregation.conftest import (
    altered,
    identities_of,
    summed,
)
from tests.privaudit.privacy.secure_aggregation.test_active_server import (
    Trusting,
    survivor_lists,
)


def ring(parties: int, neighbours: int, threshold: int) -> MaskingGraph:
    """Return a graph in the order of the clients, so that tests can count."""
    return MaskingGraph(tuple(range(parties)), Density(neighbours, threshold))


def serve(
    graph: MaskingGraph, colluders: Collection[int] = (), make: Any = Client
) -> ActiveServer:
    """Return a server of a graph's clients."""
    threshold = graph.density.threshold
    return ActiveServer(len(graph.order), threshold, colluders, make, graph)


def ask_all(server: ActiveServer, survivors: Iterable[int]) -> None:
    """Show one list to all on it, and ask those who sign for their shares."""
    there = sorted(survivors)
    signed = server.signatures({c: there for c in there if c in server.honest})
    for asked in list(signed):
        near = server.roster.among(asked, signed)
        colluders = server.roster.among(asked, server.colluders_signatures(asked))
        theirs = {c: signed[c] for c in near}
        theirs |= {c: server.colluders_signatures(asked)[c] for c in colluders}
        server.ask(asked, theirs)


def cut_off(neighbours: int, threshold: int, colluding: int) -> bool:
    """Say whether a server gets the sum of a third of a ring by itself.

    It tells nobody a lie but one, and all the same one: that those on both sides of the
    third, as many as a client has neighbours on a side, were lost after they uploaded.
    Colluders stand among them, next to those who are left.
    """
    half = neighbours // 2
    third = [*range(half, 4 * half)]
    gaps = [*range(4 * half, 5 * half), *range(half)]
    parties, rest = 9 * half, [*range(5 * half, 9 * half)]
    colluders = [*range(4 * half, 4 * half + colluding), *range(colluding)]
    assert not set(colluders) - set(gaps)
    server = serve(ring(parties, neighbours, threshold), colluders)
    server.collect()
    ask_all(server, [*third, *rest, *colluders])
    return server.unmasked(*third)


@pytest.mark.parametrize(("neighbours", "colluding"), [(6, 0), (6, 1), (8, 2)])
def test_nobody_is_cut_off_at_the_active_threshold_and_one_less_allows_it(
    neighbours: int, colluding: int
) -> None:
    least = neighbours // 2 + colluding + 2
    assert not cut_off(neighbours, least, colluding)
    assert cut_off(neighbours, least - 1, colluding)


def test_what_suffices_for_a_passive_server_does_not_for_an_active_one() -> None:
    """So the passive density is for servers that follow the protocol, and no others."""
    density = sparsest(100, Assumptions("passive"))
    active = sparsest(100, Assumptions("active"))
    assert density is not None
    assert active is not None
    assert cut_off(density.neighbours, density.threshold, 0)
    assert active.threshold > active.neighbours // 2 + 1


def test_lists_of_survivors_that_differ_between_neighbours_uncover_nobody() -> None:
    """The victim's neighbours are each shown a list of their own."""
    graph = ring(31, 22, 14)  # holds against two colluders
    assert survivor_lists(serve(graph, [7, 19], Trusting))
    server = serve(graph, [7, 19])
    assert not survivor_lists(server)
    given_away = {
        holder for holders in server.shares.values() for holder in holders
    } - {7, 19}
    assert not given_away


@pytest.mark.parametrize("named", [[0, 2, 3], []], ids=["by an odd few", "by all"])
def test_a_client_does_not_sign_without_a_threshold_of_neighbours(
    named: list[int],
) -> None:
    """Its neighbourhood is called lost, whole or but for few."""
    graph = ring(20, 6, 5)
    server = serve(graph)
    server.collect()
    lost = {17, 18, 19, 1, 2, 3} - set(named)
    there = [c for c in range(20) if c not in lost]
    with pytest.raises(FaultError, match="its list of survivors is short"):
        server.clients[0].sign(there if named != [0, 2, 3] else [0, 2, *range(4, 17)])
    assert not server.signatures({0: there})


@pytest.mark.parametrize("colluding", [4, 5])
def test_neighbours_below_the_threshold_learn_nothing_and_at_it_they_do(
    colluding: int,
) -> None:
    """With a server that follows the protocol and reads; client 0 is the victim."""
    graph = ring(24, 8, 5)
    colluders = [c for c in graph.near(0) if c][:colluding]
    server = serve(graph, colluders)
    server.collect()
    ask_all(server, range(24))
    assert server.unmasked(0) == (colluding == 5)
    if colluding == 4:  # what it may learn: the sum of all who do not collude
        assert server.unmasked(*server.honest)


def test_all_of_ones_neighbours_as_colluders_uncover_it_whatever_the_threshold() -> (
    None
):
    """Which is why graphs are drawn: no one chooses who stands beside whom."""
    graph = ring(20, 4, 4)
    server = serve(graph, [18, 19, 1, 2])
    server.collect()
    ask_all(server, range(20))
    assert server.unmasked(0)


def test_keys_of_a_stranger_are_refused() -> None:
    server = serve(ring(12, 4, 3))
    keys, signatures = server.advertised()
    some = [0, 1, 2, 5, 10, 11]
    with pytest.raises(FaultError, match="keys of others than neighbours"):
        server.clients[0].share_out(
            {c: keys[c] for c in some}, {c: signatures[c] for c in some}
        )


def test_signatures_of_strangers_do_not_count() -> None:
    server = serve(ring(12, 4, 3))
    server.collect()
    signed = server.signatures({c: [*range(12)] for c in range(12)})
    assert not server.ask(0, {c: signed[c] for c in (0, 1, 5, 6)})
    assert not server.ask(1, {c: signed[c] for c in (0, 1)})
    assert server.ask(2, {c: signed[c] for c in (0, 1, 2)})


def test_survivors_beyond_ones_neighbourhood_are_signed_too() -> None:
    """So neighbours who sign the same agree on who is in the sum everywhere."""
    server = serve(ring(12, 4, 3))
    server.collect()
    lists = {c: [*range(12)] for c in range(12)}
    lists[1] = [c for c in range(12) if c != 6]  # no neighbour of 0, 1 or 2
    signed = server.signatures(lists)
    assert not server.ask(0, {c: signed[c] for c in (0, 1, 2)})
    assert server.ask(2, {c: signed[c] for c in (0, 2, 3, 4)})


def test_a_signature_is_of_one_graph() -> None:
    """Another order, number of neighbours or threshold, or all pairs: none is valid."""
    publics = tuple(identity.public for identity in identities_of(6))
    own = identities_of(6)[0]
    orders = {(0, 1, 2, 3, 4, 5), (0, 2, 1, 3, 4, 5)}
    graphs = [
        None,
        *(MaskingGraph(order, Density(2, 2)) for order in sorted(orders)),
        MaskingGraph((0, 1, 2, 3, 4, 5), Density(4, 2)),
        MaskingGraph((0, 1, 2, 3, 4, 5), Density(2, 3)),
    ]
    rosters = [Roster(publics, "run 1, round 0", graph) for graph in graphs]
    here = rosters[1]
    for texts in (
        [roster.keys_text(0, b"keys") for roster in rosters],
        [roster.lists_text({}, (), range(6)) for roster in rosters],
    ):
        signed = [here.has_signed(0, texts[1], own.sign(text)) for text in texts]
        assert signed == [False, True, False, False, False]


@pytest.mark.parametrize("kind", ["keys", "shares", "signatures"])
def test_a_servers_list_that_names_a_stranger_aborts_the_round(kind: str) -> None:
    """Client 5 is none of client 0's neighbours; it stands in for client 2."""

    def stranger(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        clients = arrays["clients"].copy()
        clients[clients == 2] = 5
        return {**arrays, "clients": clients}

    def carry(packet: Packet) -> Packet:
        return altered(kind, stranger, sender=SERVER, to=0)(packet)

    updates = [[2.0**i, float(-i)] for i in range(12)]
    outcome = summed(updates, graph=ring(12, 4, 3), largest=4096.0, carry=carry)
    assert outcome.total is None
    (fault,) = outcome.faults
    assert (fault.client, fault.accuser) == (SERVER, 0)
