import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, DatasetError, TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.partition import ByDomain, Dirichlet, Partition, Pathological
from privaudit.datasets.split import (
    PUBLIC,
    SEEN,
    TEST,
    UNUSED,
    Split,
    SplitSizes,
    split_records,
)
from privaudit.federated.runs.ledger import Ledger

LABELS = np.tile(np.arange(5), 60)
SPLIT = np.repeat([TRAIN, VALIDATION, TEST_SPLIT], [180, 40, 80])


def split(
    shares: SplitSizes | None = None,
    partition: Partition | None = None,
    *,
    clients: int = 3,
    split: np.ndarray | None = SPLIT,
    domains: np.ndarray | None = None,
    known: np.ndarray | None = None,
    seed: int = 0,
) -> Split:
    return split_records(
        LABELS, partition or Dirichlet(10.0), shares or SplitSizes(),
        clients=clients, seeds=Seeds(seed), split=split, domains=domains, known=known,
    )  # fmt: skip


def counts(assigned: Split) -> tuple[int, int, int]:
    """Return how many are for tests, public and candidates."""
    tests, publics = len(assigned.of(TEST)), len(assigned.of(PUBLIC))
    return tests, publics, int((assigned.owner >= 0).sum())


def test_the_data_sets_own_split_is_kept_by_default() -> None:
    assigned = split()
    np.testing.assert_array_equal(
        assigned.of(TEST), np.flatnonzero(SPLIT == TEST_SPLIT)
    )
    np.testing.assert_array_equal(
        assigned.of(PUBLIC), np.flatnonzero(SPLIT == VALIDATION)
    )
    assert counts(assigned) == (80, 40, 180)


def test_without_a_split_three_and_four_tenths_are_set_apart() -> None:
    assert counts(split(split=None)) == (90, 120, 90)
    as_before = split(SplitSizes(0.3, 0.4), split=None)
    np.testing.assert_array_equal(split(split=None).owner, as_before.owner)


def test_the_part_that_a_split_lacks_is_a_share_of_the_rest() -> None:
    """Of 300 records, 80 are for tests: 0.4 of 220; or 0.3 of 300 beside 40 public."""
    no_validation = np.where(SPLIT == VALIDATION, TRAIN, SPLIT)
    assert counts(split(split=no_validation)) == (80, 88, 132)
    no_test = np.where(SPLIT == TEST_SPLIT, TRAIN, SPLIT)
    assigned = split(split=no_test)
    assert counts(assigned) == (90, 40, 170)
    assert set(assigned.of(PUBLIC)) == set(np.flatnonzero(SPLIT == VALIDATION))


def test_numbers_that_are_given_come_before_the_split() -> None:
    assigned = split(SplitSizes(public=0.5))
    assert counts(assigned) == (80, 110, 110)
    assert set(assigned.of(PUBLIC)) != set(np.flatnonzero(SPLIT == VALIDATION))
    assert counts(split(SplitSizes(test=0.1))) == (30, 40, 230)
    assert counts(split(SplitSizes(0.1, 0.2))) == (30, 60, 210)


@given(
    known=st.sets(st.integers(0, 299), max_size=60),
    seed=st.integers(0, 20),
    own=st.booleans(),
)
def test_what_the_model_has_seen_is_neither_candidate_nor_test(
    known: set[int], seed: int, own: bool
) -> None:
    seen = np.array(sorted(known), dtype=np.int64)
    assigned = split(known=seen, seed=seed, split=SPLIT if own else None)
    assert known <= set(assigned.of(PUBLIC).tolist())
    if not own:  # seen records count as part of the share
        assert counts(assigned) == (90, 120, 90)


@given(shots=st.integers(1, 80), seed=st.integers(0, 20))
def test_shots_are_so_many_of_each_class_or_all_of_them(shots: int, seed: int) -> None:
    """180 records of train are 36 of each class."""
    assigned = split(SplitSizes(shots=shots), Pathological(), clients=2, seed=seed)
    candidates = assigned.owner >= 0
    wanted = [min(shots, 36)] * 5
    assert np.bincount(LABELS[candidates], minlength=5).tolist() == wanted
    assert (SPLIT[candidates] == TRAIN).all()
    assert len(assigned.of(UNUSED)) == 180 - sum(wanted)
    assert counts(assigned)[:2] == (80, 40)


def test_other_seeds_draw_other_shots() -> None:
    first, second = (
        split(SplitSizes(shots=4), seed=seed).owner >= 0 for seed in (0, 1)
    )
    assert (first != second).any()


def test_all_candidates_are_members_where_the_rule_says_so() -> None:
    assigned = split(SplitSizes(members="all", shots=8))
    ledger = Ledger.toss(assigned, Seeds(0))
    np.testing.assert_array_equal(ledger.is_member, assigned.owner >= 0)
    coin = Ledger.toss(split(SplitSizes(shots=8)), Seeds(0))
    assert 0 < coin.is_member.sum() < ledger.is_member.sum()
    np.testing.assert_array_equal(assigned.owner, split(SplitSizes(shots=8)).owner)


def test_without_public_records_the_validation_part_is_trained_on() -> None:
    none = SplitSizes(public=0.0, members="all")
    assert counts(split(none)) == (80, 0, 220)
    assigned = split(none, known=np.array([0, 1]))
    assert counts(assigned) == (80, 0, 218)
    assert (assigned.owner[:2] == SEEN).all()
    with pytest.raises(TooFewRecordsError, match="public_share = 0 was requested"):
        split(SplitSizes(public=0.0))


def test_a_split_without_a_training_part_leaves_no_candidates() -> None:
    with pytest.raises(TooFewRecordsError, match="got 0 candidates"):
        split(split=np.where(SPLIT == TRAIN, TEST_SPLIT, SPLIT))


def test_too_few_shots_for_the_clients_are_refused() -> None:
    with pytest.raises(TooFewRecordsError, match="got 1 candidates"):
        split(SplitSizes(shots=1), Pathological(), clients=5)


@given(seed=st.integers(0, 10), alpha=st.sampled_from([0.3, 5.0]))
def test_each_client_of_a_partition_by_domains_has_one_domain(
    seed: int, alpha: float
) -> None:
    domains = np.arange(300) // 5 % 3
    assigned = split(partition=ByDomain(alpha), clients=6, domains=domains, seed=seed)
    for client in range(6):
        assert set(domains[assigned.of(client)]) == {client % 3}
    rest = np.flatnonzero(assigned.owner >= 0)
    np.testing.assert_array_equal(rest, np.flatnonzero(SPLIT == TRAIN))


def test_one_client_for_each_domain_gets_all_of_it() -> None:
    domains = np.arange(300) // 5 % 3
    assigned = split(partition=ByDomain(0.1), domains=domains)
    for client in range(3):
        mine = (domains == client) & (SPLIT == TRAIN)
        np.testing.assert_array_equal(assigned.of(client), np.flatnonzero(mine))


def test_domains_that_are_missing_or_do_not_divide_the_clients_are_refused() -> None:
    with pytest.raises(DatasetError, match="data set has 0 of them"):
        split(partition=ByDomain())
    with pytest.raises(DatasetError, match="data set has 1 of them"):
        split(partition=ByDomain(), domains=np.zeros(300, dtype=int))
    with pytest.raises(ConfigError, match=r"4 clients cannot .* over 3 domains"):
        split(partition=ByDomain(), clients=4, domains=np.arange(300) % 3)


@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_clients_of_cifar_10_all_get_candidates(seed: int) -> None:
    """30,000 candidates remain of 50,000; alpha is that of published tables."""
    labels = np.repeat(np.arange(10), 6000)
    split = np.tile(np.repeat([TRAIN, TEST_SPLIT], [5000, 1000]), 10)
    for clients, alpha in ((100, 0.5), (50, 0.3), (25, 0.3)):
        assigned = split_records(
            labels, Dirichlet(alpha), SplitSizes(),
            clients=clients, seeds=Seeds(seed), split=split,
        )  # fmt: skip
        assert np.bincount(assigned.owner[assigned.owner >= 0]).min() >= 2
        assert counts(assigned) == (10_000, 20_000, 30_000)


def test_shares_are_drawn_again_until_every_client_has_two(
    rng: np.random.Generator,
) -> None:
    """Many a single draw leaves somebody with less."""
    labels, partition = np.repeat(np.arange(10), 40), Dirichlet(0.06)
    once = [
        np.bincount(partition._draw(labels, 8, rng), minlength=8).min() >= 2
        for _ in range(200)
    ]
    assert 0.02 < np.mean(once) < 0.95
    for _ in range(20):
        assert np.bincount(partition.split(labels, 8, rng), minlength=8).min() >= 2
