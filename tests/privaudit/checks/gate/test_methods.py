"""The gate on methods: faked numbers for what it says, small trainings for the whole."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from privaudit.checks.gate import methods
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.methods import Method, MethodGate, Pairs, SeedNumbers
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import (
    ConfigError,
    IncompatibleRunsError,
    PrivauditError,
    TooFewRecordsError,
    TranscriptError,
    UnknownNameError,
)
from privaudit.report.ci_formats import gate_badge, gate_junit, gate_sarif
from privaudit.runs.run import load_run
from privaudit.statistics.estimate import unresolved
from tests.conftest import Cli

SMALL = {"rounds": 1, "clients": 2}
WITHOUT = GateSettings(shadows=0)
NEAR = (0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, -0.01, 0.02, 0.0, 0.01, -0.02)
Faked = Callable[..., list[tuple[str, int]]]


def made(text: str, settings: GateSettings = WITHOUT, **fields: Any) -> Method:
    return Method.of(text, settings, fields={**SMALL, **fields})


def pairs_in(folder: Path, *texts: str, **more: Any) -> Pairs:
    sides = tuple(made(text) for text in texts or ("promptfl", "zero-shot"))
    return Pairs(sides, runs=folder, **more)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Faked:
    """Let methods have AUROCs without training, each taking some seconds."""
    trained: list[tuple[str, int]] = []

    def fake(seconds: float = 1.0, **aurocs: Sequence[float]) -> list[tuple[str, int]]:
        def auroc(method: Method, seed: int, folder: Path, watcher: Any) -> float:
            trained.append((method.text, seed))
            return aurocs[method.cell.trainer.replace("-", "_")][seed]

        monkeypatch.setattr(Method, "auroc", auroc)
        clock = SimpleNamespace(monotonic=lambda: seconds * len(trained))
        monkeypatch.setattr(methods, "time", clock)
        return trained

    return fake


def above(differences: Sequence[float]) -> dict[str, list[float]]:
    """Return AUROCs of two methods that differ by so much."""
    plain = [0.5 + 0.01 * (seed % 3) for seed in range(len(differences))]
    risen = [value + d for value, d in zip(plain, differences, strict=True)]
    return {"promptfl": risen, "zero_shot": plain}


@pytest.mark.parametrize(
    ("rise", "outcome", "code", "seeds"),
    [
        (0.0, "pass", 0, 6),
        (0.1, "regression", 1, 6),
        (0.05, "rose, size open", 3, 12),
    ],
)
def test_a_gate_says_what_seeds_show(
    rise: float, outcome: str, code: int, seeds: int, faked: Faked, tmp_path: Path
) -> None:
    faked(**above([rise + d for d in NEAR]))
    found = methods.gate_methods(pairs_in(tmp_path))
    assert (found.outcome, found.exit_code) == (outcome, code)
    assert (found.looks, len(found.seeds)) == ((6, 12), seeds)
    assert found.alpha == 0.025  # of each of two looks, both sides together
    (check,) = found.checks
    assert check.sentence.startswith(outcome.capitalize())
    assert "promptfl" in check.sentence
    assert "zero-shot" in check.sentence
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_is_open_names_the_seeds_that_decide_and_their_time(
    faked: Faked, tmp_path: Path
) -> None:
    faked(seconds=30.0, **above([8 * d for d in NEAR]))
    found = methods.gate_methods(pairs_in(tmp_path, most=10))
    assert (found.outcome, found.exit_code) == ("underpowered", 3)
    fewest, most = found.further or (0, 0)
    assert 4 <= fewest < most
    sentence = found.checks[0].sentence
    assert sentence.startswith("Undecided whether promptfl leaks more than zero-shot")
    assert f"{fewest} to {most} further seeds (" in sentence
    assert f"--seed 10 --seeds {most}." in sentence


def test_minutes_plan_by_the_first_seed_that_is_trained(
    faked: Faked, tmp_path: Path
) -> None:
    """Of two runs at 15 s, five minutes pay for ten seeds, and two for four."""
    faked(seconds=15.0, **above(NEAR))
    for minutes, looks in ((5.0, (10,)), (2.0, (4,)), (60.0, (6, 12))):
        found = methods.gate_methods(pairs_in(tmp_path / str(minutes), minutes=minutes))
        assert found.looks == looks


def test_minutes_that_pay_for_too_few_seeds_are_refused_and_nothing_is_lost(
    faked: Faked, tmp_path: Path
) -> None:
    trained = faked(seconds=30.0, **above(NEAR))
    with pytest.raises(ConfigError, match=r"pays for 3, .*--minutes 4"):
        methods.gate_methods(pairs_in(tmp_path, minutes=3.0))
    assert len(trained) == 2
    methods.gate_methods(pairs_in(tmp_path, minutes=4.0))
    assert len(trained) == 8  # the first pair is not trained again


def test_a_gate_that_was_stopped_goes_on_and_says_the_same(
    faked: Faked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = above([0.05 + d for d in NEAR])
    faked(**numbers)
    whole = methods.gate_methods(pairs_in(tmp_path / "whole"))
    trained = faked(**{name: values[:8] for name, values in numbers.items()})
    trained.clear()
    with pytest.raises(IndexError):  # killed in the ninth
        methods.gate_methods(pairs_in(tmp_path / "stopped"))
    trained = faked(**numbers)
    trained.clear()
    again = methods.gate_methods(pairs_in(tmp_path / "stopped"))
    assert trained == [(t, n) for n in range(8, 12) for t in ("promptfl", "zero-shot")]
    assert (again.aurocs, again.outcome) == (whole.aurocs, whole.outcome)


def test_a_plan_stands_whatever_is_given_later(faked: Faked, tmp_path: Path) -> None:
    """Else whoever gives more minutes until it is decided would look too often."""
    trained = faked(**above([8 * d for d in NEAR]))
    first = methods.gate_methods(pairs_in(tmp_path, most=4))
    count = len(trained)
    later = methods.gate_methods(pairs_in(tmp_path, minutes=100.0, most=12))
    assert (len(trained), later.looks) == (count, (4,))
    assert later.checks[0].sentence == first.checks[0].sentence
    assert "That plan stands" in later.notes[0]


def test_another_question_has_another_plan(faked: Faked, tmp_path: Path) -> None:
    faked(**above(NEAR))
    pairs = pairs_in(tmp_path)
    strict = replace(WITHOUT, margin=0.02)
    others = [
        replace(pairs, first_seed=1),
        replace(pairs, methods=tuple(made(m.text, strict) for m in pairs.methods)),
        replace(pairs, methods=pairs.methods[::-1]),
        pairs_in(tmp_path, "dp-fpl:epsilon=8", "zero-shot"),
        pairs_in(tmp_path, "dp-fpl:epsilon=4", "zero-shot"),
    ]
    files = {one.file for one in [pairs, *others]}
    assert len(files) == 1 + len(others)
    assert replace(pairs, minutes=1.0, most=4).file == pairs.file


def test_a_file_stands_for_the_method_whose_numbers_it_holds(
    faked: Faked, tmp_path: Path
) -> None:
    trained = faked(**above([0.1 + d for d in NEAR]))
    file = tmp_path / "plain.json"
    pairs_in(tmp_path, "zero-shot").go_on(judge=False).save(file)
    assert file.stat().st_mode & 0o077 == 0
    stored, count = SeedNumbers.read(file), len(trained)
    assert len(stored.aurocs) == 12
    found = methods.gate_methods(pairs_in(tmp_path, "promptfl", stored=stored))
    assert {text for text, _ in trained[count:]} == {"promptfl"}
    both = methods.gate_methods(pairs_in(tmp_path))
    assert (found.baseline, found.outcome) == ("zero-shot", "regression")
    assert (found.aurocs, found.looks) == (both.aurocs, both.looks)


@pytest.mark.parametrize(
    ("fields", "settings", "more", "said"),
    [
        ({"rounds": 2}, WITHOUT, {}, "rounds 2 and 1"),
        ({"dataset": "shapes"}, WITHOUT, {}, "dataset shapes and None"),
        ({}, replace(WITHOUT, margin=0.1), {}, "margin 0.1 and 0.05"),
        ({}, replace(WITHOUT, attacks=("entropy",)), {}, "attack entropy and loss"),
        ({}, replace(WITHOUT, clients=1), {}, "clients 1 and all"),
        ({}, WITHOUT, {"first_seed": 3}, "first seed 3 and 0"),
    ],
)
def test_what_was_not_asked_alike_is_not_compared(
    fields: dict[str, Any],
    settings: GateSettings,
    more: dict[str, Any],
    said: str,
    faked: Faked,
    tmp_path: Path,
) -> None:
    faked(**above(NEAR))
    file = tmp_path / "plain.json"
    pairs_in(tmp_path, "zero-shot", most=4).go_on(judge=False).save(file)
    method = made("promptfl", settings, **fields)
    stored = SeedNumbers.read(file)
    with pytest.raises(IncompatibleRunsError, match=said):
        methods.gate_methods(Pairs((method,), runs=tmp_path, stored=stored, **more))


def test_a_file_that_was_altered_or_is_of_another_kind_is_refused(
    faked: Faked, tmp_path: Path
) -> None:
    faked(**above(NEAR))
    file = tmp_path / "plain.json"
    pairs = pairs_in(tmp_path, "zero-shot", most=4)
    pairs.go_on(judge=False).save(file)
    file.write_text(file.read_text().replace("0.51", "0.91"))
    with pytest.raises(TranscriptError, match="not as it was signed"):
        SeedNumbers.read(file)
    pairs.file.write_text(file.read_text())
    with pytest.raises(TranscriptError, match="not as it was signed"):
        pairs.go_on()
    file.write_text('{"baseline": 3}')
    with pytest.raises(ConfigError, match="holds no method's AUROCs"):
        SeedNumbers.read(file)
    with pytest.raises(PrivauditError, match="There is no baseline"):
        SeedNumbers.read(tmp_path / "none.json")


def test_lower_scores_of_members_are_a_leak_too(faked: Faked, tmp_path: Path) -> None:
    faked(**above([-0.3 + d for d in NEAR]))
    found = methods.gate_methods(pairs_in(tmp_path))
    assert found.outcome == "regression"
    assert found.aurocs[0][0] == pytest.approx(0.79)


def test_what_no_gate_could_do_is_refused_before_training(
    faked: Faked, tmp_path: Path
) -> None:
    trained = faked(**above(NEAR))
    with pytest.raises(ConfigError, match="are one method"):
        methods.gate_methods(pairs_in(tmp_path, "promptfl", "promptfl:epochs=50"))
    for wrong in ({"most": 3}, {"minutes": 0.0}, {"first_seed": -1}):
        with pytest.raises(ConfigError, match="Use at least 4"):
            pairs_in(tmp_path, **wrong)
    with pytest.raises(ConfigError, match="seed = 3 was given for all runs"):
        made("promptfl", seed=3)
    with pytest.raises(UnknownNameError, match="one attack that promptfl allows"):
        made("promptfl", replace(WITHOUT, attacks=("entropy", "confidence")))
    with pytest.raises(ConfigError, match="trained on all candidates"):
        made("promptfl", members="all")
    assert not trained


def test_reports_for_ci_say_the_outcome_and_no_number(
    faked: Faked, tmp_path: Path
) -> None:
    faked(**above([0.05 + d for d in NEAR]))
    found: GateResult = methods.gate_methods(pairs_in(tmp_path))
    assert isinstance(found, MethodGate)
    assert gate_badge(found)["color"] == "orange"
    assert 'type="rose, size open"' in gate_junit(found)
    (result,) = gate_sarif(found)["runs"][0]["results"]
    assert (result["kind"], result["ruleId"]) == ("open", "leak-change")
    assert not any(f"{value:.3f}" in gate_junit(found) for value, _ in found.aurocs)


GATE = "gate --method promptfl --against"
FEW = "--seeds 4 --shadows 0 --field rounds=1 --field clients=2"


def test_methods_are_trained_and_attacked_with_the_same_seeds(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    code, out, err = cli(*GATE.split(), "zero-shot", *FEW.split(), "--json")
    assert code in (0, 1, 3), err
    found = json.loads(out.splitlines()[-1])
    runs = [load_run(path.name) for path in (tmp_path / "runs").glob("*seed*")]
    assert sorted(run.config.seed or 0 for run in runs) == [0, 0, 1, 1, 2, 2, 3, 3]
    coins = {run.config.seed: run.header["ledger_hash"] for run in runs}
    assert all(run.header["ledger_hash"] == coins[run.config.seed] for run in runs)
    assert found["paired"] == "seed"
    assert found["seeds"] == [0, 1, 2, 3]
    first, second = zip(*found["aurocs"], strict=True)
    assert found["checks"][0]["now"] == pytest.approx(sum(first) / 4)
    assert set(first) != set(second)
    monkeypatch.setattr(Method, "auroc", None)  # nothing is trained again
    assert (
        json.loads(cli(*GATE.split(), "zero-shot", *FEW.split(), "--json")[1]) == found
    )
    code, out, _ = cli(*GATE.split(), "zero-shot", *FEW.split())
    assert code == found["exit_code"]
    assert "which are the replicates" in " ".join(out.split())


def test_a_methods_numbers_are_written_and_compared_with(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faked: Faked
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(tmp_path / "runs"))
    faked(**above(NEAR))
    write = f"gate --method zero-shot --write-baseline plain.json {FEW}"
    code, out, err = cli(*write.split())
    assert (code, "one AUROC a seed" in out) == (0, True), err
    assert cli(*GATE.split(), "plain.json", *FEW.split())[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gate --against zero-shot", "given against and no --method"),
        ("gate run --seeds 4", "given most and no --method"),
        ("gate run --method promptfl --against zero-shot", "given run and --method"),
        (f"{GATE} zero-shot --max-auroc 0.6", "given max-auroc and --method"),
        (f"{GATE} zero-shot --baseline a.json", "given baseline and --method"),
        ("gate --method promptfl", "takes --method and --against"),
        (f"{GATE} zero-shot --write-baseline a.json", "takes --method and --against"),
        (f"{GATE} none.json", "There is no baseline none.json"),
    ],
)
def test_options_of_the_other_gate_are_refused(
    words: str, said: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = cli(*words.split())
    assert (code, said in err) == (2, True), err


def test_an_attack_without_a_number_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auroc = unresolved("needs 2 clients, has 0", (0,), "none", 0.95)
    swept = SimpleNamespace(point=SimpleNamespace(auroc=auroc))
    monkeypatch.setattr(methods, "perform_cell", lambda *_: swept)
    with pytest.raises(TooFewRecordsError, match=r"seed 0: .*needs 2 clients"):
        methods.gate_methods(pairs_in(tmp_path))
