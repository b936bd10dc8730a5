"""Runs whose uploads were masked: what they leave behind, and what attacks learn."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor, train
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.scenario import MASKED
from privaudit.core.errors import ViewError
from privaudit.federated.runs.runs import Run
from privaudit.federated.transcripts.threat_models import server
from privaudit.federated.transcripts.transcript import SERVER
from privaudit.report.settings import masked_with
from tests.conftest import Cli, common_cache, stop_after

QUICK: dict[str, Any] = {"rounds": 3, "epochs": 1, "seed": 2}
CHANCE = 1e-6


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train one run in the clear, one under masks, and one with losses."""
    folder = tmp_path_factory.mktemp("masked")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="clear", **QUICK)
        train(folder=folder, name="masked", secure_aggregation="masked", **QUICK)
        train(
            folder=folder,
            name="lossy",
            secure_aggregation="masked",
            dropout=0.3,
            **QUICK,
        )
    return folder


def test_the_masked_run_ends_where_the_clear_one_does(runs: Path) -> None:
    clear, masked = Run(runs / "clear"), Run(runs / "masked")
    for client, model in clear.personal_models.items():
        other = masked.personal_models[client]["context"]
        torch.testing.assert_close(other, model["context"], rtol=1e-3, atol=1e-4)


def test_no_file_that_an_adversary_sees_holds_an_update_in_the_clear(
    runs: Path,
) -> None:
    """The first round's updates are the same in both runs, to the last bit."""
    updates = [
        m.tensors["context"]
        for m in Run(runs / "clear").transcript
        if m.kind == "update" and m.round == 0
    ]
    wanted = {
        part
        for update in updates
        for numbers in (update, update.double())
        for part in (numbers.numpy().tobytes(), numbers[0, :8].numpy().tobytes())
    }

    def found(run: str) -> int:
        files = [f.read_bytes() for f in (runs / run / "transcript").iterdir()]
        return sum(part in file for part in wanted for file in files)

    assert found("masked") == 0
    assert found("clear") == 2 * len(updates)  # as sent, in float32


def test_masked_uploads_of_a_run_are_uniform(runs: Path) -> None:
    from scipy import stats

    shares = [
        (t.double() / 2.0**64 + 0.5).flatten()
        for m in Run(runs / "masked").transcript
        if m.kind == "masked"
        for t in m.tensors.values()
    ]
    numbers = torch.cat(shares).numpy()
    assert len(numbers) > 10_000
    assert stats.kstest(numbers, "uniform").pvalue > CHANCE


def test_metrics_say_what_came_of_every_sum(runs: Path) -> None:
    found = [line["secure_sum"] for line in Run(runs / "masked").metrics]
    assert [one["outcome"] for one in found] == ["summed"] * 3
    outcomes = {line["secure_sum"]["outcome"] for line in Run(runs / "lossy").metrics}
    assert any(outcome.startswith("aborted, too few surv") for outcome in outcomes)
    assert "summed" in outcomes
    assert all("secure_sum" not in line for line in Run(runs / "clear").metrics)


def test_an_aborted_round_leaves_what_is_broadcast_as_it_was(runs: Path) -> None:
    run = Run(runs / "lossy")
    sent = {
        m.round: m.tensors["context"] for m in run.transcript if m.kind == "broadcast"
    }
    for line in run.metrics:
        index = line["round"]
        aborted = line["secure_sum"]["outcome"].startswith("aborted")
        assert torch.equal(sent[index], sent[index + 1]) == aborted


def test_masks_cost_bytes_both_ways(runs: Path) -> None:
    clear, masked = Run(runs / "clear").metrics[0], Run(runs / "masked").metrics[0]
    assert masked["bytes_up"] > 2 * clear["bytes_up"]  # 8 bytes a number, not 4
    assert masked["bytes_down"] > clear["bytes_down"]


def test_equal_configurations_give_equal_bytes_and_a_resumed_run_too(
    runs: Path, tmp_path: Path
) -> None:
    masked: dict[str, Any] = {
        "secure_aggregation": "masked",
        "dropout": 0.3,
        **QUICK,
    }
    with pytest.raises(KeyboardInterrupt):
        train(folder=tmp_path, name="again", watcher=stop_after(1), **masked)
    assert not Run(tmp_path / "again").is_complete
    train(folder=tmp_path, name="again", resume=True, **masked)
    for path in (runs / "lossy" / "transcript").iterdir():
        again = tmp_path / "again" / "transcript" / path.name
        assert again.read_bytes() == path.read_bytes()


def test_the_server_rebuilds_nobody_and_the_reason_is_given(runs: Path) -> None:
    masked = Auditor(Run(runs / "masked"))
    audit = masked.attack("server-reconstruct", shadows=0)
    sums = masked.attack("server-aggregate", shadows=0)
    assert audit.scenario.threat == "server-aggregate"
    assert MASKED in audit.part(CLOSENESS).missing
    assert audit.auroc == sums.auroc
    assert MASKED not in sums.part(CLOSENESS).missing


@pytest.mark.slow
def test_shadows_of_masked_sums_are_those_of_ideal_ones(runs: Path) -> None:
    """An adversary repeats what the server sees: sums, whoever made them."""
    found = [
        Auditor(Run(runs / name)).attack("server-aggregate", clients=1, shadows=5)
        for name in ("clear", "masked")
    ]
    values = [audit.results["lira"].auroc.value for audit in found]
    assert values[0] == pytest.approx(values[1], abs=0.02)


def test_what_needs_single_updates_says_that_there_are_none(runs: Path) -> None:
    with pytest.raises(ViewError, match="uploads of this run are masked"):
        Auditor(Run(runs / "masked")).attack("update-watch")
    with pytest.raises(ViewError, match="only sums"):
        server(Run(runs / "masked").transcript).updates_of("client-0")


def test_sums_count_those_who_are_in_them(runs: Path) -> None:
    run = Run(runs / "lossy")
    said = [line["secure_sum"]["in_the_sum"] for line in run.metrics]
    view = server(run.transcript)
    assert [one.parties for one in view.sums] == [n for n in said if n]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trainer", "pfedmoap"), "uses each of them by itself, not their sum"),
        (("--participation", "0.1"), "1 of 10 clients takes part in a round"),
        (("--dropout", "1"), "cannot take dropout"),
    ],
)
def test_what_cannot_be_masked_is_refused(
    words: tuple[str, ...], said: str, cli: Cli
) -> None:
    words = ("train", "--secure-aggregation", "masked", *words)
    code, _, error = cli(*words)
    assert code == 2
    assert said in error


def test_a_graph_is_for_masked_uploads_only(cli: Cli) -> None:
    code, _, error = cli("train", "--seed", 0, "--masking-graph", "active")
    assert code == 2
    assert "Add --secure-aggregation masked, or leave --masking-graph out" in error


def test_the_command_line_trains_on_a_graph_to_the_same_models(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    words = ["--secure-aggregation", "masked", "--masking-graph", "passive"]
    words += ["--rounds", "3", "--set", "epochs=1", "--seed", "2", "--name", "ring"]
    code, _, error = cli("train", "--seed", 0, *words)
    assert code == 0, error
    ring, all_pairs = Run(tmp_path / "runs" / "ring"), Run(runs / "masked")
    assert ring.config.masking_graph == "passive"
    sums = [line["secure_sum"] for line in ring.metrics]
    assert [(s["neighbours"], s["threshold"]) for s in sums] == [(4, 2)] * 3
    assert masked_with(ring.metrics) == "4 neighbours each, threshold 2"
    assert masked_with(all_pairs.metrics) == ""
    for client, model in all_pairs.personal_models.items():
        other = ring.personal_models[client]["context"]
        assert torch.equal(model["context"], other)
    keys = [m for m in ring.transcript if m.kind == "keys" and m.sender == SERVER]
    assert {len(m.tensors["clients"]) for m in keys} == {5}


@pytest.mark.slow
def test_the_command_line_trains_attacks_and_lints_a_masked_run(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    shutil.copytree(runs / "masked", tmp_path / "runs" / "masked")
    words = ("attack", "masked", "--shadows", "0")
    code, out, _ = cli(*words)
    assert code == 0
    assert "no single one to reconstruct a client's model from" in " ".join(out.split())
    stored = tmp_path / "runs" / "masked" / "audits" / "server-reconstruct"
    audit = json.loads((stored / "audit.json").read_text())
    assert audit["threat"] == "server-aggregate"
    assert cli("lint", "masked")[0] == 0
