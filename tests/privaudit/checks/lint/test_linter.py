"""The linter on runs as they lie on the disk, by function and by command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privaudit import Run, load_run, train
from privaudit.checks.lint import RULES, lint
from privaudit.core.errors import ConfigError
from tests.conftest import Cli, common_cache, refused

pytestmark = pytest.mark.slow  # seven runs, and accountants that take seconds
Load = Callable[[str], Run]
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sound": ("dp-fpl", {"epsilon": 8, "noise_at": "client", "rounds": 12}),
    "seeded": ("dp-fpl", {"epsilon": 8, "noise_at": "client", "rounds": 4, "seed": 0}),
    "paper": ("dp-fpl", {"mode": "published-paper", "epsilon": 0.1, "rounds": 4}),
    "code": ("dp-fpl", {"mode": "published-code", "epsilon": 0.1, "rounds": 4}),
    "plain": ("promptfl", {"epochs": 1, "rounds": 2}),
    "unasked": ("dp-fpl", {"rounds": 2}),
    "untrained": ("zero-shot", {"rounds": 1}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("linted")
    with common_cache(tmp_path_factory):
        for name, (trainer, settings) in RUNS.items():
            train(trainer, name=name, folder=made, clients=4, **settings)
    return made


@pytest.fixture
def run(folder: Path) -> Load:
    return lambda name: load_run(name, folder=folder)


def test_sound_training_with_noise_at_the_client_has_no_error(run: Load) -> None:
    assert lint(run("sound")) == []
    findings = lint(run("seeded"))
    assert [(f.rule, f.severity) for f in findings] == [("stored-seeds", "error")]


@pytest.mark.parametrize("mode", ["paper", "code"])
def test_published_modes_clip_batches_and_claim_less_than_is_certified(
    mode: str, run: Load
) -> None:
    errors = {f.rule for f in lint(run(mode)) if f.severity == "error"}
    assert errors == {
        "clip-per-record",
        "releases-composed",
        "claim-covers-certificate",
    }


def test_where_nothing_is_claimed_one_note_says_so(run: Load) -> None:
    (plain,) = lint(run("plain"))
    assert (plain.rule, plain.severity) == ("nothing-claimed", "note")
    assert plain.settings == ()
    (unasked,) = lint(run("unasked"))
    assert "Without epsilon no noise is added" in unasked.sentence
    assert unasked.settings == ("epsilon=none", "mode=sound")


def test_a_method_that_touches_no_record_keeps_its_claim(run: Load) -> None:
    assert lint(run("untrained")) == []


@pytest.mark.parametrize(
    ("trainer", "settings"),
    [
        ("dp-fpl", {"rounds": 2}),  # the server's noise, behind a masked sum
        ("dp-fedpt", {"noise_by": "server", "epochs": 1, "participation": 0.25}),
    ],
)
def test_masked_sums_of_drawn_clients_are_as_declared(
    trainer: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Who is drawn is told by the round's broadcasts: survivors are numbered anew."""
    settings = {"rounds": 12, "clients": 8, "measured_rounds": 1} | settings
    run = train(
        trainer, folder=tmp_path, epsilon=8, secure_aggregation="masked", **settings
    )
    assert {f.rule for f in lint(run)} == {"claim-covers-certificate"}


def test_an_interrupted_run_is_refused(cut: Path) -> None:
    with pytest.raises(ConfigError, match="stopped after 2 of 3 rounds"):
        lint(load_run(cut))


def test_rules_have_names_and_questions_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) == 16
    assert all(rule.question.endswith("?") for rule in RULES)


@pytest.mark.parametrize(
    ("words", "code"),
    [(["sound"], 0), (["plain"], 0), (["paper", "sound"], 1), (["seeded"], 1)],
)
def test_the_exit_code_is_1_where_a_claim_does_not_hold(
    words: list[str], code: int, folder: Path, cli: Cli
) -> None:
    assert cli("lint", *words, "--runs", folder)[0] == code


def test_bad_input_is_exit_code_2(folder: Path, cli: Cli) -> None:
    assert "holds no run" in refused(cli, "lint", "nobody", "--runs", folder)


def test_findings_are_printed_for_people_and_for_machines(
    folder: Path, cli: Cli
) -> None:
    _, out, _ = cli("lint", "paper", "--runs", folder)
    assert out.startswith("paper: 4 errors\n  error: clip-per-record: ")
    assert "[mode=published-paper, clip=batch]" in out
    _, out, _ = cli("lint", "paper", "--json", "--runs", folder)
    found = json.loads(out)["paper"]
    assert set(found[0]) == {"rule", "severity", "sentence", "settings"}


def test_runs_of_one_name_keep_their_findings(
    folder: Path, tmp_path: Path, cli: Cli
) -> None:
    shutil.copytree(folder / "sound", tmp_path / "paper")
    both = folder / "paper", tmp_path / "paper"
    code, out, _ = cli("lint", *both, "--json", "--sarif", tmp_path / "l.sarif")
    assert (code, [*json.loads(out)]) == (1, [str(path) for path in both])
    assert (tmp_path / "l.sarif").read_text().count('"level": "error"') == 4
