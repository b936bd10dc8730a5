"""Parsing and a missing package in every environment; the package in make test-flower."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.datasets.flower_partition import FlowerPartition
from privaudit.federated.runs.config import make_config
from privaudit.federated.runs.folder.run_names import load_run, runs_folder
from tests.conftest import Cli

real = pytest.mark.flower
needs_package = pytest.mark.skipif(
    not find_spec("flwr_datasets"), reason="make test-flower installs it"
)
LABELS = np.repeat(np.arange(5), 40)
OWNERS = np.arange(200) % 4 + 7
IID = "flwr:IidPartitioner"
SHARDS = "flwr:ShardPartitioner:num_shards_per_partition=2"


def split(
    text: str, clients: int = 4, owners: bool = True, seed: int = 0
) -> np.ndarray:
    domains = OWNERS if owners else None
    partition, rng = FlowerPartition.of(text), np.random.default_rng(seed)
    return partition.split(LABELS, clients, rng, domains)


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
    assert long.digest == short.digest != other.digest
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
        split("flwr:IidPartitioner")


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
    owner = split(text)
    assert np.bincount(owner, minlength=4).min() >= 2
    assert set(owner) == {0, 1, 2, 3}
    np.testing.assert_array_equal(owner, split(text))
    if "NaturalId" in text:
        np.testing.assert_array_equal(np.unique([owner, OWNERS], axis=1).shape, [2, 4])
    else:
        assert (owner != split(text, seed=1)).any()


@real
@needs_package
def test_clients_have_what_the_package_gives_them_on_shuffled_records() -> None:
    datasets = pytest.importorskip("datasets")
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    order = np.random.default_rng(0).permutation(200)
    named = {"alpha": 0.3, "min_partition_size": 2, "seed": 11}
    oracle = partitioner.DirichletPartitioner(3, "label", **named)
    columns = {"place": order.tolist(), "label": LABELS[order].tolist()}
    oracle.dataset = datasets.Dataset.from_dict(columns)
    text = ",".join(f"{key}={value}" for key, value in named.items())
    owner = split(f"flwr:DirichletPartitioner:{text}", clients=3, owners=False)
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
        split(text, owners=False)


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
