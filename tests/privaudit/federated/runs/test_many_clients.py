"""Options for federations of many clients, from the command line to the numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privaudit.core.tensors import Tensors
from privaudit.federated.runs.folder.run_names import latest_runs
from privaudit.federated.runs.utility import measure_clients
from privaudit_tools.benchmarks.many_clients import write_embeddings
from tests.conftest import Cli

BASE = ("train", "--trainer", "zero-shot", "--rounds", "1", "--clients")


def test_shards_and_a_sample_of_tested_clients(cli: Cli) -> None:
    words = ("--partition", "shards", "--shards", "1", "--tested-clients", "5")
    assert cli(*BASE, "60", *words)[0] == 0
    (run,) = latest_runs()
    population = run.population
    sizes = {len(population.indices(client)) for client in population.task.clients}
    assert sizes == {8, 9}
    tested = population.tested_clients
    assert tested is not None
    assert len(set(tested)) == 5
    utility = measure(run, run.personal_models)
    assert utility.tested_clients == 5
    chosen = {client: run.personal_models[client] for client in tested}
    assert utility == measure(run, chosen)
    assert run.metrics[-1]["mix_accuracy"] == utility.mix.value


def measure(run: Any, models: Mapping[str, Tensors]) -> Any:
    return measure_clients(run.trainer, run.population, models)


def test_natural_clients_are_owners_and_are_tested_on_their_classes(
    cli: Cli, tmp_path: Path
) -> None:
    data = write_embeddings(tmp_path / "bank.npz", 20)
    words = ("--dataset", "feature-bank", "--data", str(data), "--tested", "50")
    assert cli(*BASE, "20", *words, "--partition", "natural")[0] == 0
    (run,) = latest_runs()
    population, owners = run.population, run.population.dataset.domains
    assert owners is not None
    for number, client in enumerate(population.task.clients):
        positions = population.indices(client)
        assert set(owners[positions].tolist()) == {number}
        assert population.own_records(client).any()
    assert run.metrics[-1]["local_accuracy"] is not None


def test_sizes_by_a_power_law_and_owners_that_are_not_there(cli: Cli) -> None:
    words = ("--partition", "sizes", "--sizes", "power:1.5")
    assert cli(*BASE, "4", *words)[0] == 0
    (run,) = latest_runs()
    sizes = [len(run.population.indices(c)) for c in run.population.task.clients]
    assert sizes[0] > 2 * sizes[1] > 3 * sizes[2] > 0
    for other, match in (
        (["--partition", "natural"], "does not say whose its records are"),
        (["--partition", "sizes", "--sizes", "5;6"], "sizes"),
    ):
        code, _, err = cli(*BASE, "4", *other)
        assert (code, match in err) == (2, True)
