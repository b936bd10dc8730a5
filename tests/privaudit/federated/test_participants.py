"""Attacks ask about clients whose training reached the adversary, and no others."""

from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, train
from privaudit.core.errors import ConfigError
from privaudit.federated.participants import trained_clients
from privaudit.federated.runs.runs import Run
from tests.conftest import Cli, common_cache

QUICK: dict[str, Any] = {"rounds": 3, "epochs": 1, "participation": 0.4, "seed": 36}
LOSSY: dict[str, Any] = {"secure_aggregation": "masked", "dropout": 0.3, **QUICK}
NOBODY: dict[str, Any] = {**LOSSY, "seed": 7}  # each of its three sums is aborted


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("who")
    with common_cache(tmp_path_factory):
        train(folder=folder, name="clear", **QUICK)
        train(folder=folder, name="lossy", **LOSSY)
        train(folder=folder, name="whole", **LOSSY | {"dropout": 0.0})
        train("fedpgp", folder=folder, name="personal", **LOSSY)
        train("fedpgp", folder=folder, name="personal-clear", **QUICK)
        train(folder=folder, name="nobody", **NOBODY)
    return folder


def in_a_sum(run: Run) -> set[str]:
    """Tell who is in a sum by another way: who got a broadcast and was not lost."""
    found: set[str] = set()
    for line in run.metrics:
        said = line["secure_sum"]
        if said["outcome"] == "summed":
            asked = {
                m.receiver
                for m in run.transcript
                if m.kind == "broadcast" and m.round == line["round"]
            }
            lost = {
                c
                for c, stage in said["lost_before"].items()
                if stage not in ("signature", "revealed-shares")
            }
            assert len(asked - lost) == said["in_the_sum"]
            found |= asked - lost
    return found


def test_who_is_in_no_sum_is_no_target_of_the_server(runs: Path) -> None:
    lossy, everyone = (
        Run(runs / "lossy"),
        trained_clients(Run(runs / "clear"), "server"),
    )
    found = trained_clients(lossy, "server-aggregate")
    assert set(found) == in_a_sum(lossy)
    assert 0 < len(found) < len(everyone)
    for scenario in ("server-aggregate", "server-reconstruct"):
        audit = Auditor(lossy).attack(scenario, shadows=0)
        assert [one.client for one in audit.headline.clients] == list(found)


def test_without_losses_targets_are_those_of_an_ideal_sum(runs: Path) -> None:
    clear, whole = Run(runs / "clear"), Run(runs / "whole")
    for threat in ("server", "server-aggregate", "released", "peer:client-1"):
        assert trained_clients(whole, threat) == trained_clients(clear, threat)


def test_a_released_model_was_trained_on_by_its_owner_if_a_part_is_its_own(
    runs: Path,
) -> None:
    everyone = trained_clients(Run(runs / "personal-clear"), "released")
    assert trained_clients(Run(runs / "personal"), "released") == everyone
    for name, threat in (("personal", "server-aggregate"), ("lossy", "released")):
        found = trained_clients(Run(runs / name), threat)
        assert set(found) == in_a_sum(Run(runs / name))
        assert len(found) < len(everyone)


def test_a_run_all_of_whose_sums_were_aborted_cannot_be_attacked(runs: Path) -> None:
    with pytest.raises(ConfigError, match="no client to attack"):
        Auditor(Run(runs / "nobody")).attack("server-aggregate", shadows=0)


@pytest.mark.parametrize(("name", "aborted"), [("lossy", 1), ("whole", 0)])
def test_train_says_how_many_sums_were_aborted(
    name: str, aborted: int, runs: Path, cli: Cli
) -> None:
    words = ["train", "--rounds", "3", "--set", "epochs=1", "--participation", "0.4"]
    words += ["--secure-aggregation", "masked", "--runs", str(runs), "--name", name]
    words += ["--seed", "36", *(["--dropout", "0.3"] if name == "lossy" else [])]
    code, out, _ = cli(*words)
    assert code == 0
    is_said = "1 of 3 sums were aborted: too few survivors" in out.splitlines()
    assert is_said == bool(aborted)
    _, out, _ = cli(*words, "--json")
    assert f'"sums": 3, "aborted_sums": {aborted}' in out


@pytest.mark.parametrize("extra", [{}, {"dropout": 0.3}])
def test_who_took_part_is_read_and_not_drawn_again(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run whose participants are not those that its seed would give now."""
    others = ("client-2", "client-7")
    with monkeypatch.context() as patch:
        patch.setattr(
            "privaudit.federated.federation.participants_of", lambda *_: others
        )
        train(folder=tmp_path, name="run", **QUICK | {"rounds": 2} | extra)
    run = Run(tmp_path / "run")
    asked = {m.receiver for m in run.transcript if m.kind == "broadcast"}
    sent = {m.sender for m in run.transcript if m.kind == "update"}
    assert run.participants == [others, others]
    assert set(trained_clients(run, "server")) == sent <= set(others) < asked
