"""Random rings of neighbours: that they are regular, and dense enough."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest

from privaudit.privacy.secure_aggregation.graph import (
    Assumptions,
    Density,
    MaskingGraph,
    ServerKind,
    exposed,
    sparsest,
    stuck,
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
