"""``train --trainings``, ``attack --pool`` and ``--until-decided``, as users call them."""

import pytest

from privaudit.auditing.stored_audit import read_audit
from privaudit.checks.gate.gate import gate
from privaudit.checks.gate.settings import GateSettings
from privaudit.report import page as report_module
from privaudit.runs.run import load_run, runs_folder
from tests.conftest import Cli

RUN = "--trainer zero-shot --rounds 1 --clients 2 --shots 8 --quiet --seed 0"
BOX = ("--scenario", "black-box", "--shadows", "0")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = dict.fromkeys(("tradeoff", "clients", "roc"), "")
    monkeypatch.setattr(report_module, "_figures", lambda data: nothing)


def test_trainings_are_pooled_and_the_pool_is_an_audit_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = cli("train", *RUN.split(), "--name", "one", "--trainings", "3")
    assert code == 0, err
    names = ["one", "one-2", "one-3"]
    assert [(runs_folder() / name / "run.json").exists() for name in names] == [
        True
    ] * 3
    assert [load_run(name).config.seed for name in names] == [0, 1, 2]
    code, out, err = cli("attack", "--pool", *BOX)
    assert code == 0, err
    assert "3 trainings with coins of their own are one audit" in " ".join(out.split())
    for name in names:
        assert not list((runs_folder() / name / "audits").glob("*/audit.json"))
    pool, scores = "one-pool-2-3-black-box", ("--scenario", "scores")
    code, out, err = cli("gate", pool, *scores, "--max-auroc", "0.9")
    assert code in (0, 1, 3), err
    assert cli("report", pool, *scores)[0] == 0
    monkeypatch.setattr("privaudit.cli.commands.attack._LONGEST", 0)
    monkeypatch.chdir(runs_folder().parent)
    monkeypatch.setenv("PRIVAUDIT_RUNS", "runs")  # relative, as it is by default
    assert cli("attack", "one", "one-3", "--pool", *BOX)[0] == 0
    (smaller,) = {one.name for one in runs_folder().glob("*-pool-*")} - {pool}
    assert load_run(pool).config.clients == 6  # and another pool stands beside it
    said = cli.refused("verify", pool, "--recompute")
    assert "Recompute the trainings (one, one-2, one-3)" in said
    assert "methods over seeds" in cli.refused("compare", pool, smaller, *scores)
    page = runs_folder() / pool / "audits" / "scores" / "report.html"
    assert "3 trainings with coins of their own" in page.read_text()
    said = cli.refused("attack", "one", "one-2", "one", "--pool", *BOX)
    assert "follow from the seed 0 in both" in said


def test_further_trainings_are_made_until_six_looks_or_the_time_is_over(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("train", *RUN.split(), "--name", "one")[0] == 0
    code, out, err = cli(
        "attack", "one", "--until-decided", "--at-most", "0.001s", *BOX
    )
    assert code == 0, err
    assert "Look 1 of at most 6" in " ".join(out.split())
    assert not (runs_folder() / "one-2").exists()
    monkeypatch.setattr("privaudit.auditing.auditor.LOOKS", 2)
    code, out, err = cli("attack", "one", "--until-decided", *BOX)
    assert code == 0, err
    assert "Look 2 of at most" in " ".join(out.split())
    assert (runs_folder() / "one-2" / "run.json").exists()
    assert not (runs_folder() / "one-3").exists()
    pool = "one-until-decided-black-box"
    verdict = read_audit(load_run(pool), "scores").verdict()
    gated = gate(pool, None, GateSettings(scenario="scores", max_auroc=0.9))
    assert gated.alpha == 0.05 / (verdict.audits * verdict.pooled.share) < 0.05


def test_options_that_a_pool_would_drop_are_refused(cli: Cli) -> None:
    assert "without --until-decided" in cli.refused("attack", "--at-most", "1h")
    assert "one by one" in cli.refused("attack", "--pool", "--show-records")
