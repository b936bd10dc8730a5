import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    TooFewRecordsError,
    TranscriptError,
)
from privaudit.core.seeds import Seeds
from privaudit.datasets.partition import (
    UNUSED,
    ByShards,
    BySizes,
    Dirichlet,
    Natural,
    Partition,
    Pathological,
    repaired,
)
from privaudit.datasets.split import PUBLIC, TEST, Split, SplitSizes, split_records
from privaudit.federated.runs.ledger import Ledger

LABELS = np.repeat(np.arange(10), 60)
ALPHAS = st.sampled_from([0.001, 0.5, 100.0])


def split(partition: Partition, clients: int, seed: int = 0) -> Split:
    return split_records(
        LABELS,
        partition,
        SplitSizes(0.25, 0.25),
        clients=clients,
        seeds=Seeds(seed),
    )


@given(clients=st.integers(1, 10), seed=st.integers(0, 50))
def test_pathological_classes_have_one_owner_and_are_split_evenly(
    clients: int, seed: int
) -> None:
    assigned = split(Pathological(), clients, seed)
    classes = [set(LABELS[assigned.of(c)].tolist()) for c in range(clients)]
    assert sum(len(mine) for mine in classes) == len(set().union(*classes)) == 10
    sizes = [len(mine) for mine in classes]
    assert max(sizes) - min(sizes) <= 1


@given(seed=st.integers(0, 50), alpha=st.sampled_from([0.3, 1.0, 100.0]))
def test_every_record_has_exactly_one_place(seed: int, alpha: float) -> None:
    assigned = split(Dirichlet(alpha), 3, seed)
    counts = [len(assigned.of(owner)) for owner in (TEST, PUBLIC, 0, 1, 2)]
    assert sum(counts) == len(LABELS)
    assert counts[:2] == [150, 150]


def test_a_large_alpha_splits_evenly_and_a_small_one_does_not() -> None:
    def spread(alpha: float) -> float:
        assigned = split(Dirichlet(alpha), 4)
        shares = [np.bincount(LABELS[assigned.of(c)], minlength=10) for c in range(4)]
        return float(np.std(shares))

    assert spread(1000.0) < 2 < spread(0.2)


def test_more_clients_than_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"over 11 clients .* 10 classes"):
        split(Pathological(), 11)


def test_more_clients_than_candidates_have_room_for_are_refused_with_the_numbers() -> (
    None
):
    with pytest.raises(TooFewRecordsError, match="candidates of 300, and at least 2"):
        split(Dirichlet(), 151)


@given(clients=st.integers(1, 150), seed=st.integers(0, 20), alpha=ALPHAS)
def test_every_client_has_two_candidates_wherever_there_are_enough(
    clients: int, seed: int, alpha: float
) -> None:
    assigned = split(Dirichlet(alpha), clients, seed)
    counts = np.bincount(assigned.owner[assigned.owner >= 0], minlength=clients)
    assert counts.min() >= 2
    assert counts.sum() == 300


def test_a_first_draw_that_succeeds_is_not_repaired() -> None:
    """Shares drawn by hand, class by class, as this partition always did."""
    rng = Seeds(0).stream("deal").numpy()
    labels, owner = LABELS[:100], np.empty(100, dtype=np.int64)
    given = Dirichlet(10.0).split(labels, 3, Seeds(0).stream("deal").numpy())
    for label in np.unique(labels):
        records = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet([10.0] * 3))[:-1] * len(records)
        for client, part in enumerate(np.split(records, np.round(cuts).astype(int))):
            owner[part] = client
    np.testing.assert_array_equal(given, owner)


def test_a_repair_moves_as_few_records_as_can_be_from_the_richest() -> None:
    owner = np.repeat([0, 1, 2], [6, 4, 1])
    moved = repaired(owner, 4, np.random.default_rng(0))
    assert np.bincount(moved).tolist() == [3, 4, 2, 2]
    assert (moved != owner).sum() == 3
    assert set(owner[moved != owner]) == {0}
    again = repaired(owner, 4, np.random.default_rng(0))
    np.testing.assert_array_equal(moved, again)
    np.testing.assert_array_equal(repaired(owner, 6, np.random.default_rng(0)), owner)


def test_natural_clients_are_owners_with_enough_records() -> None:
    domains = np.array([7, 7, 3, 5, 5, 5, 9, 9])
    rng = np.random.default_rng(0)
    owner = Natural().split(domains, 3, rng, domains)
    assert owner.tolist() == [1, 1, UNUSED, 0, 0, 0, 2, 2]
    drawn = Natural().split(domains, 2, rng, domains)
    assert {int((drawn == client).sum()) for client in (0, 1)} <= {2, 3}
    with pytest.raises(TooFewRecordsError, match=r"3 of 4 owners .* --clients 3"):
        Natural().split(domains, 4, rng, domains)
    with pytest.raises(DatasetError, match="does not say whose its records are"):
        Natural().split(domains, 2, rng)


def test_shards_are_equal_parts_in_the_order_of_classes() -> None:
    """300 candidates of 10 classes, in 30 shards of 10: a shard is of one or two."""
    assigned = split(ByShards(3), 10)
    for client in range(10):
        classes = set(LABELS[assigned.of(client)])
        assert len(assigned.of(client)) == 30
        assert len(classes) <= 6
    with pytest.raises(TooFewRecordsError, match="40 shards for each of 10 clients"):
        split(ByShards(40), 10)


def test_sizes_are_those_given_or_follow_a_power() -> None:
    assigned = split(BySizes("200,50,2"), 3)
    counts = [len(assigned.of(client)) for client in (0, 1, 2, UNUSED)]
    assert counts == [200, 50, 2, 48]
    # 2 each, and 294 in shares of 6, 3 and 2: 160.4, 80.2 and 53.5
    assert BySizes("power:1").of(300, 3) == [2 + 160, 2 + 80, 2 + 54]
    assert BySizes("power:0").of(11, 3) == [4, 4, 3]
    for sizes, match in (
        ("5,5", "2 sizes"),
        ("5,1,5", "client-1 would get 1"),
        ("299,2,2", "303"),
    ):
        with pytest.raises(ConfigError, match=match):
            split(BySizes(sizes), 3)
    with pytest.raises(TooFewRecordsError, match="fewer than 2 for each"):
        BySizes("power:2").of(7, 4)


def test_shares_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave no candidates"):
        split_records(
            LABELS,
            Pathological(),
            SplitSizes(0.6, 0.4),
            clients=2,
            seeds=Seeds(0),
        )


def test_the_membership_coin_is_fair_and_tossed_for_candidates_alone() -> None:
    assigned = split(Pathological(), 5)
    heads = tosses = 0
    for seed in range(50):
        ledger = Ledger.toss(assigned, Seeds(seed))
        assert not ledger.is_member[assigned.owner < 0].any()
        heads += int(ledger.is_member.sum())
        tosses += int((assigned.owner >= 0).sum())
    assert binomtest(heads, tosses).pvalue > 1e-3


def test_the_coin_does_not_look_at_the_class() -> None:
    """Members and others of a shard come from one distribution."""
    assigned = split(Pathological(), 5)
    by_class = np.zeros((10, 2))
    for seed in range(50):
        ledger = Ledger.toss(assigned, Seeds(seed))
        mine = assigned.owner >= 0
        np.add.at(by_class, (LABELS[mine], ledger.is_member[mine].astype(int)), 1)
    shares = by_class[:, 1] / by_class.sum(axis=1)
    assert np.abs(shares - 0.5).max() < 0.06


def test_a_ledger_survives_the_disk(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "ledger.npz"
    ledger = Ledger.toss(split(Pathological(), 5), Seeds(0))
    ledger.save(path)
    np.testing.assert_array_equal(Ledger.load(path).is_member, ledger.is_member)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TranscriptError, match="cut or altered"):
        Ledger.load(path)
