import pytest

from privaudit.federated.runs.folder.run_names import load_run, runs_folder
from privaudit.report import page as report_module
from tests.conftest import Cli

SCENARIOS = ("server-reconstruct", "prompt-release")
BOTH = [word for name in SCENARIOS for word in ("--scenario", name)]
RUN = "--trainer zero-shot --rounds 1 --clients 2 --shots 8 --quiet"
ATTACK = ("attack", *BOTH, "--shadows", "0", "--on", "local:1")


def test_each_scenario_is_made_on_each_run_with_a_page_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    undrawn = dict.fromkeys(("tradeoff", "clients", "roc"), "")
    monkeypatch.setattr(report_module, "_figures", lambda data: undrawn)
    folder = runs_folder()
    for seed in "12":
        named = ("--name", f"seed{seed}", "--seed", seed)
        assert cli("train", "--seed", 0, *RUN.split(), *named)[0] == 0

    code, out, err = cli(*ATTACK, "--scenario", "prompt-release", "seed1", "seed2")
    assert code == 0, err
    for scenario in SCENARIOS:
        assert out.count(f"Scenario: {scenario}\n") == 1
        page = folder / f"report-{scenario}.html"
        assert page.name in out
        assert page.exists()
        for seed in "12":
            audits = load_run(folder / f"seed{seed}").path / "audits"
            assert (audits / scenario / "report.html").exists()
    assert "seed1: attack 1/4, server-reconstruct" in err

    code, out, _ = cli(*ATTACK, "seed1", "--quiet")
    lines = out.splitlines()
    assert code == 0
    for line, scenario in zip(lines, SCENARIOS, strict=True):
        assert line.startswith(f"seed1, {scenario}: ")


def test_an_unknown_scenario_is_refused_before_the_others_are_made(cli: Cli) -> None:
    assert cli("train", "--seed", 0, *RUN.split(), "--name", "one")[0] == 0
    code, _, err = cli(*ATTACK, "--scenario", "promt-release", "one")
    assert (code, "Did you mean 'prompt-release'?" in err) == (2, True)
    assert not list((runs_folder() / "one" / "audits").glob("*"))
