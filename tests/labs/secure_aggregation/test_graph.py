"""Random rings of neighbours: that they are regular, and dense enough."""

from collections.abc import Collection, Iterable
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

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

from privaudit_labs.secure_aggregation.packets import (
    MASKED,
    REVEALED,
    SERVER,
    SHARES,
    SIGNED,
    STAGES,
    Assumptions,
    Density,
    FaultError,
    MaskingGraph,
    Packet,
    Roster,
    ServerKind,
    exposed,
    sparsest,
    stuck,
)
from privaudit_labs.secure_aggregation.protocol import Client, ProtocolOutcome
from tests.labs.secure_aggregation.active_server import ActiveServer
from tests.labs.secure_aggregation.conftest import (
    altered,
    decoded,
    identities_of,
    summed,
)
from tests.labs.secure_aggregation.test_active_server import (
    Trusting,
    survivor_lists,
)

SERVERS: tuple[ServerKind, ...] = ("active", "passive")


@pytest.mark.parametrize(("parties", "neighbours"), [(5, 2), (10, 8), (31, 12)])
def test_all_have_as_many_neighbours_each_on_both_sides(
    parties: int, neighbours: int
) -> None:
    graph = MaskingGraph.drawn(parties, Density(neighbours, 2), bytes(32))
    assert sorted(graph.order) == [*range(parties)]
    for place, client in enumerate(graph.order):
        near = graph.near(client)
        assert list(near) == sorted(set(near))
        assert len(near) == neighbours + 1
        for other, there in enumerate(graph.order):
            apart = min((place - other) % parties, (other - place) % parties)
            assert (there in near) == (apart <= neighbours // 2)
            assert (there in near) == (client in graph.near(there))


def test_equal_seeds_give_equal_graphs_and_all_orders_are_as_likely() -> None:
    density = Density(2, 2)
    drawn = [MaskingGraph.drawn(5, density, i.to_bytes(32)) for i in range(1200)]
    assert drawn[7] == MaskingGraph.drawn(5, density, (7).to_bytes(32))
    counts = np.array([[g.near(0).count(c) for c in range(1, 5)] for g in drawn])
    assert np.abs(counts.mean(axis=0) - 0.5).max() < 0.06  # 2 of 4, 4 deviations


def tail(drawn: int, marked: int, of: int, least: int) -> Fraction:
    """Return the chance of at least so many marked among those drawn."""
    ways = sum(
        comb(marked, i) * comb(of - marked, drawn - i)
        for i in range(max(0, least), drawn + 1)
    )
    return Fraction(ways, comb(of, drawn))


def by_hand(parties: int, density: Density, assumed: Assumptions) -> list[Fraction]:
    """Return both bounds by counting, of shares that divide the clients."""
    k, t = density.neighbours, density.threshold
    corrupt, lost = (
        int(Fraction(str(share)) * parties) for share in (assumed.corrupt, assumed.lost)
    )
    honest, half = parties - corrupt, k // 2
    stays = parties * (1 - tail(k, parties - lost, parties - 1, t))
    if assumed.server == "active":
        return [2 * honest * tail(half, corrupt, parties - 1, t - half - 1), stays]
    all_gone = tail(k, corrupt + lost, parties, k)
    pairs = sum(  # of stretches with somebody between them on both sides
        min((b - a) % parties, (a - b) % parties) > half
        for a, b in combinations(range(parties), 2)
    )
    return [honest * tail(k, corrupt, parties - 1, t) + pairs * all_gone, stays]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("parties", [20, 100, 250])
def test_the_density_is_the_least_that_meets_both_bounds(
    parties: int, server: ServerKind
) -> None:
    assumed = Assumptions(server)
    found = sparsest(parties, assumed)
    assert found is not None
    hidden, whole = by_hand(parties, found, assumed)
    assert hidden <= Fraction(1, 2**40)
    assert whole <= Fraction(1, 2**30)
    assert exposed(parties, found, assumed) == pytest.approx(float(hidden), rel=1e-6)
    assert stuck(parties, found, assumed) == pytest.approx(float(whole), rel=1e-6)
    below = found.neighbours - 2
    for threshold in range(1, below + 1):
        density = Density(below, threshold)
        hidden, whole = by_hand(parties, density, assumed)
        assert hidden > Fraction(1, 2**40) or whole > Fraction(1, 2**30)


def test_a_share_below_one_client_counts_as_one() -> None:
    assert exposed(15, Density(6, 5), Assumptions(corrupt=0.01)) == pytest.approx(
        exposed(15, Density(6, 5), Assumptions(corrupt=1 / 15))
    )
    assert stuck(100, Density(6, 5), Assumptions(lost=0.07)) == pytest.approx(
        stuck(100, Density(6, 5), Assumptions(lost=7 / 100))
    )


@pytest.mark.parametrize(
    ("parties", "assumed"),
    [
        (1, Assumptions()),
        (4, Assumptions()),
        (40, Assumptions(corrupt=0.3, lost=0.4)),
        (150, Assumptions(corrupt=0.5, lost=0.4)),
    ],
)
def test_where_no_graph_is_dense_enough_there_is_none(
    parties: int, assumed: Assumptions
) -> None:
    assert sparsest(parties, assumed) is None


def around(parties: int, place: int, reach: int) -> list[int]:
    """Return the places near one on a ring, without it."""
    return [(place + step) % parties for step in range(-reach, reach + 1) if step]


def is_bad(
    parties: int, density: Density, corrupt: set[int], lost: set[int], server: str
) -> bool:
    """Say whether a ring fails to hide, from the definition, on clients by place."""
    half, honest = density.neighbours // 2, set(range(parties)) - corrupt
    if server == "active":
        sides = [
            {(c + sign * step) % parties for step in range(1, half + 1)}
            for c in honest
            for sign in (1, -1)
        ]
        return any(len(s & corrupt) > density.threshold - half - 2 for s in sides)
    for client in honest:
        near = corrupt & set(around(parties, client, half))
        if len(near) >= density.threshold:
            return True
    return parts(parties, half, honest - lost) > 1


def parts(parties: int, half: int, there: set[int]) -> int:
    """Count the components of those who are there."""
    left, count = set(there), 0
    while left:
        count, reached = count + 1, [left.pop()]
        while reached:
            near = left & set(around(parties, reached.pop(), half))
            left -= near
            reached += near
    return count


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "density", [Density(4, 2), Density(4, 3), Density(4, 4), Density(6, 5)]
)
def test_no_more_rings_fail_than_the_bound_says(
    density: Density, server: ServerKind
) -> None:
    """All ways in which two of ten clients are corrupt and two others lost."""
    assumed, bad, all_of_them = Assumptions(server, 0.2, 0.2), 0, 0
    for corrupt in combinations(range(10), 2):
        for lost in combinations(sorted(set(range(10)) - {*corrupt}), 2):
            all_of_them += 1
            bad += is_bad(10, density, {*corrupt}, {*lost}, server)
    bound = exposed(10, density, assumed)
    assert bad / all_of_them <= bound + 1e-9
    if bound < 1e-9:
        assert bad == 0


@pytest.mark.parametrize("server", SERVERS)
def test_rings_fail_about_as_often_as_stated_where_it_is_often(
    server: ServerKind,
) -> None:
    """A security of one in 2^4 asks for so few neighbours that failures are seen."""
    assumed = Assumptions(server, 0.1, 0.1, security=4, correctness=4)
    density, rng = sparsest(60, assumed), np.random.default_rng(0)
    assert density is not None
    bad = alone = 0
    for _ in range(1500):
        order = rng.permutation(60).tolist()
        corrupt, lost = set(order[:6]), set(order[6:12])
        bad += is_bad(60, density, corrupt, lost, server)
        alone += any(
            len({c, *around(60, c, density.neighbours // 2)} - lost) < density.threshold
            for c in range(60)
        )
    assert 0 < bad / 1500 <= exposed(60, density, assumed) + 0.02
    assert alone / 1500 <= stuck(60, density, assumed) + 0.02


def apart(parties: int, half: int, corrupt: set[int], threshold: int) -> bool:
    """Say whether an active server can part honest clients, by trying all parts.

    Each of a part needs a threshold of holders, itself among them, in it or corrupt.
    """
    honest = [c for c in range(parties) if c not in corrupt]
    near = {c: {*around(parties, c, half), c} for c in honest}
    for count in range(1, len(honest) // 2 + 1):
        for some in combinations(honest, count):
            part = {*some}
            if any(len(near[c] & (part | corrupt)) < threshold for c in part):
                continue
            rest = set(honest) - part
            while short := {
                c for c in rest if len(near[c] & (rest | corrupt)) < threshold
            }:
                rest -= short
            if rest:
                return True
    return False


@pytest.mark.parametrize(
    ("corrupt", "worst"),
    [((), 0), ((0,), 1), ((0, 5), 1), ((0, 1), 2), ((0, 1, 5, 6), 2), ((0, 2, 7), 2)],
)
def test_no_choice_of_survivors_parts_them_at_the_active_threshold(
    corrupt: tuple[int, ...], worst: int
) -> None:
    """Eleven clients, three neighbours on either side, all subsets of the honest.

    One less parts them where corrupt clients fill the gaps.
    """
    half = 3
    found = max(
        len({(c + sign * step) % 11 for step in range(1, half + 1)} & {*corrupt})
        for c in range(11)
        if c not in corrupt
        for sign in (1, -1)
    )
    assert found == worst
    assert not apart(11, half, {*corrupt}, half + worst + 2)


def test_one_share_less_lets_them_be_parted() -> None:
    assert apart(14, 3, set(), 4)
    assert not apart(14, 3, set(), 5)
    assert apart(14, 3, {0, 7}, 5)
    assert not apart(14, 3, {0, 7}, 6)


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
