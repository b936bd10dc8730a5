"""Partitions; of flwr-datasets parsing everywhere, and the package in make test-flower."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

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
    FlowerPartition,
    Natural,
    Partition,
    Pathological,
    repaired,
)
from privaudit.datasets.split import PUBLIC, TEST, Split, SplitSizes, split_records
from privaudit.runs.config import make_config
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import load_run, runs_folder
from tests.conftest import Cli

LABELS = np.repeat(np.arange(10), 60)
ALPHAS = st.sampled_from([0.001, 0.5, 100.0])


def split(partition: Partition, clients: int, seed: int = 0) -> Split:
    return split_records(
        LABELS, partition, SplitSizes(0.25, 0.25), clients=clients, seeds=Seeds(seed)
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
            LABELS, Pathological(), SplitSizes(0.6, 0.4), clients=2, seeds=Seeds(0)
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


real = pytest.mark.flower
needs_package = pytest.mark.skipif(
    not find_spec("flwr_datasets"), reason="make test-flower installs it"
)
FIVE_CLASSES = np.repeat(np.arange(5), 40)
OWNERS = np.arange(200) % 4 + 7
IID = "flwr:IidPartitioner"
SHARDS = "flwr:ShardPartitioner:num_shards_per_partition=2"


def flower_split(
    text: str, clients: int = 4, owners: bool = True, seed: int = 0
) -> np.ndarray:
    domains = OWNERS if owners else None
    partition, rng = FlowerPartition.of(text), np.random.default_rng(seed)
    return partition.split(FIVE_CLASSES, clients, rng, domains)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("flwr:IidPartitioner", {}),
        (
            "flwr:DirichletPartitioner:alpha=0.5,min-partition-size=2,shuffle=False",
            {"alpha": 0.5, "min_partition_size": 2, "shuffle": False},
        ),
        (
            "flwr:PathologicalPartitioner:class_assignment_mode=first-deterministic,"
            "num_classes_per_partition=1e1,seed=none",
            {
                "class_assignment_mode": "first-deterministic",
                "num_classes_per_partition": 10.0,
                "seed": None,
            },
        ),
    ],
)
def test_numbers_and_words_are_read(text: str, parameters: Mapping[str, Any]) -> None:
    found = FlowerPartition.of(text)
    assert found.parameters == parameters
    assert FlowerPartition.of(str(found)) == found


def test_a_run_is_named_by_what_a_partition_means_not_by_how_it_is_written() -> None:
    long, short, other = (
        make_config("zero-shot", partition=f"flwr:ShardPartitioner:{text}")
        for text in ("shuffle=TRUE,seed=07", "seed=7,shuffle=true", "seed=8")
    )
    assert long == short
    assert long.short_hash == short.short_hash != other.short_hash
    assert long.split() == FlowerPartition(
        "ShardPartitioner", {"seed": 7, "shuffle": True}
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("flwr:", "lacks a name"),
        ("flwr:IidPartitioner:", "lacks a parameter"),
        ("flwr:IidPartitioner:seed", "NAME=VALUE"),
        ("flwr:../../os:system=1", "'../../os' is neither a word nor a number"),
        ("flwr:IidPartitioner:seed=", "'' is neither"),
        ("flwr:IidPartitioner:num_partitions=3", "use --clients"),
        ("flower", "use dirichlet, pathological, domains, natural, shards, sizes, or"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_loaded(
    name: str, says: str, cli: Cli
) -> None:
    code, _, err = cli("train", "--seed", 0, "--partition", name)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_without_the_package_the_error_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(ConfigError, match="pip install 'flwr-datasets<"):
        flower_split("flwr:IidPartitioner")


@real
@needs_package
@pytest.mark.parametrize(
    "text",
    [
        "flwr:IidPartitioner",
        "flwr:LinearPartitioner",
        "flwr:DirichletPartitioner:alpha=0.5,min_partition_size=2",
        "flwr:PathologicalPartitioner:num_classes_per_partition=3,"
        "class_assignment_mode=first-deterministic",
        SHARDS,
        "flwr:ContinuousPartitioner:strictness=0.5",
        "flwr:NaturalIdPartitioner:partition_by=owner",
        "flwr:GroupedNaturalIdPartitioner:partition_by=domain,group_size=1",
    ],
)
def test_every_candidate_has_one_client_which_the_seed_decides(text: str) -> None:
    owner = flower_split(text)
    assert np.bincount(owner, minlength=4).min() >= 2
    assert set(owner) == {0, 1, 2, 3}
    np.testing.assert_array_equal(owner, flower_split(text))
    if "NaturalId" in text:
        np.testing.assert_array_equal(np.unique([owner, OWNERS], axis=1).shape, [2, 4])
    else:
        assert (owner != flower_split(text, seed=1)).any()


@real
@needs_package
def test_clients_have_what_the_package_gives_them_on_shuffled_records() -> None:
    datasets = pytest.importorskip("datasets")
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    order = np.random.default_rng(0).permutation(200)
    named = {"alpha": 0.3, "min_partition_size": 2, "seed": 11}
    oracle = partitioner.DirichletPartitioner(3, "label", **named)
    columns = {"place": order.tolist(), "label": FIVE_CLASSES[order].tolist()}
    oracle.dataset = datasets.Dataset.from_dict(columns)
    text = ",".join(f"{key}={value}" for key, value in named.items())
    owner = flower_split(f"flwr:DirichletPartitioner:{text}", clients=3, owners=False)
    for client in range(3):
        given = sorted(oracle.load_partition(client)["place"])
        assert np.flatnonzero(owner == client).tolist() == given


@real
@needs_package
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flwr:DirichletPartition", "Did you mean 'DirichletPartitioner'"),
        ("flwr:Partitioner", "has no partitioner 'Partitioner'"),
        ("flwr:DirichletPartitioner:beta=1", r"no parameter 'beta'. It has: .*alpha"),
        ("flwr:DirichletPartitioner", "missing 1 required .*alpha"),
        ("flwr:DirichletPartitioner:alpha=-1", "strictly greater than zero"),
        ("flwr:DirichletPartitioner:alpha=0.01,min_partition_size=50", "ValueError"),
        ("flwr:ShardPartitioner:shard_size=30", "leaves out 20 of 200 candidates"),
        ("flwr:VerticalEvenPartitioner", "did not split 200 candidates among 4"),
        ("flwr:NaturalIdPartitioner:partition_by=owner", "by 'owner', and .* label"),
        ("flwr:NaturalIdPartitioner", "makes 5 partitions .* Use --clients 5"),
        (
            "flwr:PathologicalPartitioner:num_classes_per_partition=1,"
            "class_assignment_mode=deterministic",
            "leaves out 40 of 200 candidates",
        ),
    ],
)
def test_what_the_package_cannot_split_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        flower_split(text, owners=False)


@real
@needs_package
def test_a_run_is_split_by_the_package_and_read_again(cli: Cli) -> None:
    asked = "train --trainer zero-shot --rounds 1 --clients 3 --quiet --name one"
    assert cli(*asked.split(), "--partition", IID)[0] == 0
    run = load_run(runs_folder() / "one")
    assert run.config.partition == IID
    sizes = np.bincount(run.truth.owner[run.truth.owner >= 0])
    assert len(sizes) == 3
    assert np.ptp(sizes) <= 1
    code, _, err = cli(*asked.split(), "--fresh", "--partition", "flwr:IidPartition")
    assert (code, "Did you mean 'IidPartitioner'?" in err) == (2, True)
