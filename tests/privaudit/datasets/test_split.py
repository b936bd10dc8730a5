"""Splits, groups of records that belong together, and candidates that a run does without."""

import re
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit import train
from privaudit.core.errors import ConfigError, DatasetError, TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import (
    TEST_SPLIT,
    TRAIN,
    VALIDATION,
    Dataset,
    PixelImages,
)
from privaudit.datasets.partition import ByDomain, Dirichlet, Partition, Pathological
from privaudit.datasets.split import (
    PUBLIC,
    SEEN,
    TEST,
    UNUSED,
    Split,
    SplitSizes,
    group_records,
    leave_out,
    read_positions,
    split_records,
    write_positions,
)
from privaudit.runs.config import make_config
from privaudit.runs.ledger import Ledger
from privaudit.runs.population import populate
from tests.small_records import text_data

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


COUNT = 30


def pictures(size: int = 24) -> torch.Tensor:
    """Draw blobs of colour that look like nothing else."""
    small = torch.rand(COUNT, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    large = torch.nn.functional.interpolate(small, size, mode="bilinear")
    return (255 * large).round().to(torch.uint8)


def data(pixels: torch.Tensor) -> Dataset:
    return Dataset(PixelImages(pixels), torch.arange(len(pixels)) % 3, ("a", "b", "c"))


def test_captions_of_one_picture_are_one_group() -> None:
    """Rows 30 to 59 show the pictures of rows 0 to 29 again, with other classes."""
    found = group_records(data(pictures().repeat(2, 1, 1, 1)), "contents")
    assert found.tolist() == [*range(COUNT), *range(COUNT)]


def test_texts_are_grouped_by_what_they_say() -> None:
    texts = text_data(6)
    assert group_records(texts, "contents").tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DatasetError, match="no pictures"):
        group_records(texts, "near-duplicates")


def test_copies_that_differ_a_little_are_near_duplicates() -> None:
    """A copy is brighter, or noisy, or of whole numbers in place of shares."""
    plain = pictures()
    noise = torch.randint(
        -6, 7, plain.shape, generator=torch.Generator().manual_seed(2)
    )
    noisy = (plain.int() + noise).clamp(0, 255).to(torch.uint8)
    brighter = (plain.float() * 0.8 + 30).round().to(torch.uint8)
    found = group_records(data(torch.cat([plain, noisy, brighter])), "near-duplicates")
    assert found.tolist() == 3 * [*range(COUNT)]
    as_shares = group_records(
        data(torch.cat([plain / 255, noisy / 255])), "near-duplicates"
    )
    assert as_shares.tolist() == 2 * [*range(COUNT)]
    assert group_records(data(plain), "contents").tolist() == [*range(COUNT)]


def test_links_reach_across_blocks_and_pairs_are_not_held() -> None:
    """Stripes walk in steps that look alike; 1.3 million pairs at once took 93 MiB."""
    angle = torch.linspace(0, 0.5, 1000)[:, None, None] + torch.arange(8) * np.pi / 2
    across = (0.5 + 0.5 * angle.cos()).expand(-1, 8, 8)
    mixed = data(torch.stack([across, across.mT], dim=1).view(-1, 1, 8, 8))
    tracemalloc.start()
    found = group_records(mixed, "near-duplicates")
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()
    assert found.tolist() == 1000 * [0, 1]


def test_pictures_of_one_colour_are_not_alike() -> None:
    flat = torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1).expand(4, 1, 8, 8) * 60
    assert group_records(data(flat), "near-duplicates").tolist() == [0, 1, 2, 3]


def test_a_group_is_one_clients_and_has_one_coin() -> None:
    rng = np.random.default_rng(0)
    names = rng.integers(0, 150, 600)
    group = group_records(
        replace(data(torch.zeros(600, 1, 2, 2)), groups=torch.from_numpy(names)), "ward"
    )
    labels = names % 5
    assigned = split_records(
        labels, Dirichlet(10.0), SplitSizes(), clients=3, seeds=Seeds(0), group=group
    )
    ledger = Ledger.toss(assigned, Seeds(0))
    assert ledger.fits(assigned)
    for name in range(150):
        rows = names == name
        assert len(set(assigned.owner[rows])) <= 1
        assert len(set(ledger.is_member[rows])) <= 1
    candidates = ledger.owner >= 0
    firsts = candidates & (group == np.arange(600))
    assert 0.3 < ledger.is_member[firsts].mean() < 0.7
    assert len(ledger.units(np.flatnonzero(candidates)).first) == firsts.sum()


def test_a_group_of_two_owners_and_groups_of_other_records_are_refused() -> None:
    odd = data(pictures())
    object.__setattr__(odd, "groups", torch.zeros(2))  # past the tests' type checks
    with pytest.raises(DatasetError, match="30 records and 2 numbers of their group"):
        odd.__post_init__()
    with pytest.raises(DatasetError, match="Records 0 and 1 are of one group"):
        split_records(
            np.zeros(3, int), Dirichlet(1.0), SplitSizes(), clients=1, seeds=Seeds(0),
            domains=np.array([0, 1, 1]), group=np.array([0, 0, 2]),
        )  # fmt: skip


@given(st.sets(st.integers(0, 60), min_size=1))
def test_positions_are_written_and_read(positions: set[int]) -> None:
    text = write_positions(np.array(list(positions)))
    assert read_positions(text).tolist() == sorted(positions)
    assert write_positions(read_positions(text)) == text


@pytest.mark.parametrize(
    "text", ["", "a", "3-", "-3", "5-3", "1,,2", "1 2", "0-999999999"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="without"):
        make_config("promptfl", without=text)


def test_one_configuration_has_one_name() -> None:
    one, other = (make_config("promptfl", without=w) for w in ("5,3,4", "3-5"))
    assert one == other
    assert one.without == "3-5"
    assert one.short_hash != make_config("promptfl").short_hash
    assert re.fullmatch(r"3 records \([0-9a-f]{4}\)", one.described()["without"])
    assert one.described() == other.described()
    assert one.described() != make_config("promptfl", without="3-4,6").described()


def test_groups_are_left_out_together_and_others_stay() -> None:
    owner, group = np.array([0, 0, 1, 1, PUBLIC]), np.array([0, 0, 2, 3, 4])
    found = leave_out(Split(owner, group=group), np.array([1]))
    assert found.owner.tolist() == [UNUSED, UNUSED, 1, 1, PUBLIC]
    for odd in (4, 5):
        with pytest.raises(ConfigError, match=f"Record {odd} was to be left out"):
            leave_out(Split(owner), np.array([odd]))


def test_all_others_keep_their_client_and_their_coin() -> None:
    whole = train("promptfl", rounds=1, epochs=1, seed=3)
    gone = whole.ledger.candidates_of(0)[:4]
    less = train("promptfl", rounds=1, epochs=1, seed=3, without=write_positions(gone))
    stays = ~np.isin(np.arange(len(whole.ledger.owner)), gone)
    for name in ("owner", "is_member"):
        before, after = (getattr(run.ledger, name)[stays] for run in (whole, less))
        np.testing.assert_array_equal(before, after)
    assert (less.ledger.owner[gone] == UNUSED).all()
    assert not less.ledger.is_member[gone].any()


def test_a_client_without_candidates_is_refused() -> None:
    whole = train("promptfl", rounds=1, epochs=1, seed=3)
    gone = whole.ledger.candidates_of(0)
    with pytest.raises(ConfigError, match="Client 0"):
        train("promptfl", rounds=1, epochs=1, seed=3, without=write_positions(gone))


def test_a_client_keeps_its_coin_without_its_first_record() -> None:
    asked: dict[str, Any] = {
        "rounds": 1, "epochs": 1, "seed": 3, "clients": 10, "members": "clients",
    }  # fmt: skip
    whole = train("promptfl", **asked)
    assert set(whole.ledger.is_member) == {True, False}
    owned = [whole.ledger.candidates_of(n) for n in range(10)]
    gone = np.array([own[0] for own in owned])
    less = train("promptfl", without=write_positions(gone), **asked)
    for number, before in enumerate(owned):
        after = less.ledger.candidates_of(number)
        np.testing.assert_array_equal(after, before[1:])
        np.testing.assert_array_equal(
            less.ledger.is_member[after], whole.ledger.is_member[after]
        )
        assert len(less.ledger.units(after).first) == 1


def test_canaries_that_stay_are_as_they_were() -> None:
    asked: dict[str, Any] = {"seed": 3, "canary": "mislabelled", "canaries": 10}
    whole = populate(make_config("promptfl", **asked))
    assert whole.canaries is not None
    drawn = whole.canaries.indices
    other = np.setdiff1d(whole.indices("client-0"), drawn)[:3]
    gone = np.sort(np.concatenate([drawn[:1], other]))
    less = populate(make_config("promptfl", without=write_positions(gone), **asked))
    assert less.canaries is not None
    np.testing.assert_array_equal(less.canaries.indices, drawn[1:])
    assert less.canaries.norm == whole.canaries.norm
    for before, after in (
        (whole.records.labels, less.records.labels),
        (whole.records.identities, less.records.identities),
    ):
        np.testing.assert_array_equal(before[drawn[1:]], after[drawn[1:]])
    gone = np.intersect1d(drawn, whole.indices("client-0"))
    with pytest.raises(TooFewRecordsError, match="All canaries of one client"):
        populate(make_config("promptfl", without=write_positions(gone), **asked))
