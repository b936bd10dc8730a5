import json
import subprocess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from privaudit.core.devices import (
    chosen,
    chosen_device,
    use_checkpointing,
    use_memory,
)
from privaudit.core.errors import ConfigError
from privaudit.execution.jobs import computing_as
from privaudit.models.remote_code import remote_code_is_trusted, trust_remote_code
from privaudit.runs.run import Run
from privaudit.runs.training import train
from privaudit_tools.costs.costs import measure_costs, measure_fairness
from privaudit_tools.costs.local_costs import measure_round
from tests.conftest import Cli, common_cache
from tests.privaudit.cli.test_json import valid

TOKENS, WIDTH, CLIENTS, ROUNDS = 8, 64, 10, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with common_cache(tmp_path_factory):
        folder = tmp_path_factory.mktemp("runs")
        yield train("fedpt", folder=folder, rounds=ROUNDS, epochs=1, seed=0)


def test_bytes_are_those_of_the_tensors(run: Run) -> None:
    found = measure_costs(run, probe=False)
    upload = 4 * TOKENS * WIDTH + 4  # and a weight
    assert found.per_upload == upload
    assert found.up_per_client == ROUNDS * upload
    assert found.down_per_client == (ROUNDS + 1) * (upload - 4)
    assert found.bytes_total == CLIENTS * (found.up_per_client + found.down_per_client)
    assert found.local is None
    assert found.queries is None


def test_a_target_is_reached_in_the_first_round_that_has_it(run: Run) -> None:
    first = run.metrics[0]["local_accuracy"]
    assert measure_costs(run, target=first, probe=False).rounds_to_target == 1
    assert measure_costs(run, target=1.0, probe=False).rounds_to_target is None
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        measure_costs(run, target=1.5, probe=False)


def test_equal_models_differ_by_the_clients_mixtures_only(run: Run) -> None:
    fair = measure_fairness(run)
    assert fair.clients == CLIENTS
    assert 0 <= fair.spread.low <= fair.spread.value <= fair.spread.high < 0.1
    assert fair.ratio is not None
    assert fair.ratio.value == pytest.approx(fair.lowest / fair.highest)


def test_flops_grow_with_the_epochs(run: Run) -> None:
    once = measure_round(run)
    largest = max(len(run.ledger.members_of(n)) for n in range(CLIENTS))
    assert once.records == largest
    assert once.learned == TOKENS * WIDTH
    assert once.idle_bytes <= once.peak_bytes
    twice = train("fedpt", folder=run.path.parent, rounds=ROUNDS, epochs=2, seed=0)
    assert measure_round(twice).flops == 2 * once.flops > 0
    kept = train("fedotp", folder=run.path.parent, rounds=1, epochs=1, seed=0)
    assert measure_round(kept).learned == 2 * 16 * WIDTH  # of two prompts one is sent


def test_a_target_that_was_not_looked_for_each_round_is_said_to_be(run: Run) -> None:
    late = train(
        "fedpt", folder=run.path.parent, rounds=2, epochs=1, measured_rounds=1, seed=0
    )
    found = measure_costs(late, target=0.5, probe=False)
    assert found.rounds_to_target == 2
    assert not found.seen_every_round
    assert measure_costs(run, target=0.5, probe=False).seen_every_round


def test_the_command_says_it_in_lines(whole: Path, cli: Cli) -> None:
    code, said, complaint = cli("costs", whole.name, "--target", "0.5")
    assert code == 0, complaint
    assert "target 0.5                 after round 1" in said
    assert "trained parameters         1,024" in said
    assert "539 test records, 10 clients" in said.replace("n = ", "")


def test_json_is_of_its_schema(whole: Path, cli: Cli) -> None:
    (found,) = valid(cli, "costs", whole.name, "--no-probe")
    assert found["run"] == whole.name


def test_the_probe_computes_as_this_process(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = []

    def start(command: list[str], **options: Any) -> CompletedProcess[str]:
        handed.append(command)
        with trust_remote_code(False), computing_as(command[-1]):
            settings.append((chosen_device(), chosen(), remote_code_is_trusted()))
        numbers = ("records", "flops", "peak_bytes", "idle_bytes", "learned")
        local: dict[str, Any] = {"client": "first", **dict.fromkeys(numbers, 1)}
        return CompletedProcess(command, 0, json.dumps(local), "")

    settings: list[Any] = []
    monkeypatch.setattr(subprocess, "run", start)
    measure_costs(run)
    assert settings == [(torch.device("cpu"), (None, False), False)]
    with use_memory("20GiB"), use_checkpointing(), trust_remote_code():
        measure_costs(run)
    assert settings[1] == (torch.device("cpu"), (20 * 2**30, True), True)
    assert [Path(command[-2]) for command in handed] == [run.path] * 2
    assert handed[0][1] == "-P"  # what lies in the working folder is not imported
