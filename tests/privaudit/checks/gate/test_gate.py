"""The gate on audited runs, by function and by command."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, load_run
from privaudit.auditing.stored_audit import (
    LEFT_OUT,
    StoredAudit,
    read_audit,
    save_audit,
)
from privaudit.checks.gate.baseline import Baseline, joined_audit, make_baseline
from privaudit.checks.gate.checks import GateCheck, GateQuestion
from privaudit.checks.gate.gate import gate, write_baseline
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.evaluation.compare.compare import compare
from privaudit.evaluation.metric import METRICS
from privaudit.statistics.estimate import Estimate, normal_quantile
from privaudit.statistics.roc import pooled_auroc
from tests.conftest import Cli, refused

GATE = import_module("privaudit.checks.gate.gate")
Change = Callable[[np.ndarray, np.ndarray], np.ndarray]


def limits(run: str, max_auroc: float, **more: Any) -> list[GateCheck]:
    found = gate(run, None, GateSettings(max_auroc=max_auroc, shadows=0, **more))
    return [check for check in found.checks if isinstance(check, GateCheck)]


def shifted(by: float, seed: int = 0) -> Change:
    """Draw scores, of members so much higher."""

    def change(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return by * truth + rng.standard_normal(len(truth))

    return change


def rescored(attack: str, change: Change) -> Callable[..., StoredAudit]:
    """Return a reader of audits that changes one attack's scores."""

    def read(*args: Any) -> StoredAudit:
        audit = read_audit(*args)
        columns = {name: dict(found) for name, found in audit.columns.items()}
        own = columns[attack]
        own["scores"] = change(own["scores"], own["is_member"])
        return replace(audit, columns=columns)

    return read


def test_every_attack_that_was_made_is_held_to_it(runs: Path) -> None:
    audit = read_audit(load_run("tuned"), "server-reconstruct")
    found = limits("tuned", 0.9, attacks=("loss-threshold",))
    assert len(audit.attacks) > 3
    assert [c.name for c in found] == [f"{name} AUROC" for name in audit.attacks]


def test_an_attack_that_is_not_the_headline_is_a_regression_and_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(0.8)))
    found = gate("plain", None, GateSettings(max_auroc=0.6, shadows=0))
    bad = [check.name for check in found.checks if check.outcome == "regression"]
    assert (found.exit_code, bad) == (1, ["entropy AUROC"])
    (said,) = (c.sentence for c in found.checks if c.outcome == "regression")
    assert said.startswith("Regression: entropy AUROC is 0.7")
    assert "above the limit of 0.6" in said


def test_all_must_be_below_to_pass(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {check.outcome for check in limits("plain", 0.6)} == {"pass"}
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(0.35)))
    found = gate("plain", None, GateSettings(max_auroc=0.6, shadows=0))
    undecided = [c.name for c in found.checks if c.outcome == "underpowered"]
    assert (found.exit_code, undecided) == (3, ["entropy AUROC"])


def test_turned_scores_do_not_pass(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members with the lower scores are as distinguishable as with the higher ones."""
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(-3.0)))
    found = gate("plain", None, GateSettings(max_auroc=0.6, shadows=0))
    (bad,) = (check for check in found.checks if check.outcome == "regression")
    assert bad.name == "entropy AUROC"
    assert isinstance(bad, GateCheck)
    assert bad.estimate.low > 0.9
    assert "with their sign turned" in bad.sentence
    assert gate("plain", None, GateSettings(max_auroc=0.999, shadows=0)).exit_code == 0


@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.3])
def test_a_leak_of_either_sign_has_the_same_outcome(
    alpha: float, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any level: the lower scores once were turned by their 95 % interval."""
    for limit in (0.6, 0.63, 0.66, 0.69):
        settings = GateSettings(max_auroc=limit, alpha=alpha, shadows=0)
        found = []
        for sign in (-1, 1):
            drawn = rescored("entropy", lambda *of, to=sign: to * shifted(0.2)(*of))
            monkeypatch.setattr(GATE, "read_audit", drawn)
            checks = gate("plain", None, settings).checks
            found += [c.outcome for c in checks if c.name == "entropy AUROC"]
        assert found[0] == found[1]


def test_holm_counts_all_attacks(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit at 95 % by itself, and not among so many."""
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(0.3, seed=1)))
    (alone,) = (c for c in limits("plain", 0.5) if c.name == "entropy AUROC")
    limit = alone.estimate.low - 0.002
    (among,) = (c for c in limits("plain", limit) if c.name == "entropy AUROC")
    assert among.estimate.low > limit
    assert among.outcome == "underpowered"
    assert "not after Holm's correction" in among.sentence
    (strict,) = (c for c in limits("plain", limit - 0.05) if c.name == "entropy AUROC")
    assert strict.outcome == "regression"


def test_attacks_on_the_servers_own_model_count_too(runs: Path) -> None:
    """Whoever leaves them out does not see half of what a server can do."""
    audit = read_audit(load_run("tuned"), "server-reconstruct")
    stored = runs / "tuned" / "audits" / "server-reconstruct" / "audit.json"
    held = json.loads(stored.read_text())
    assert len(audit.attacks) == len(held["attack_results"]) + len(held["server_model"])


AUDIT = "plain/audits/server-reconstruct/audit.json"
AUROC = GateSettings(attacks=("loss-threshold",), metrics=("auroc",), guarantees=False)


def test_it_finds_what_a_comparison_of_the_two_runs_finds(runs: Path) -> None:
    settings = replace(AUROC, metrics=("auroc", "success"))
    found = gate("broken", runs / "plain.json", settings)
    expected = compare("broken", "plain", attacks=["loss-threshold"], utility=False)
    assert found.paired == "record"
    for code, check in zip(settings.metrics, found.tested, strict=True):
        name = f"loss-threshold {METRICS.find(code).title}"
        (change,) = (one for one in expected.changes if one.name == name)
        assert check.estimate == change.change.estimate
        assert (check.question.now, check.question.before) == pytest.approx(
            (change.first, change.second)
        )


@pytest.mark.parametrize("baseline", ["plain.json", AUDIT])
def test_a_model_that_separates_with_the_sign_turned_does_not_pass(
    runs: Path, baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AUROC that falls from 0.5 to 0.01 is a leak, and no improvement."""
    change = rescored("loss-threshold", shifted(-3.0))
    monkeypatch.setattr("privaudit.checks.gate.gate.read_audit", change)
    (found,) = gate("plain", runs / baseline, AUROC).tested
    assert found.outcome == "regression"
    assert found.question.now > 0.95
    assert (
        "Members have the lower scores now; that is the number with" in found.sentence
    )


def test_a_file_and_the_run_it_was_written_from_give_the_same(runs: Path) -> None:
    by_file = gate("broken", runs / "plain.json")
    assert gate("broken", load_run("plain")).to_dict() == by_file.to_dict()


def test_utility_that_falls_is_a_regression_and_one_that_rises_a_pass(
    runs: Path, tmp_path: Path
) -> None:
    settings = GateSettings(metrics=("utility",), guarantees=False)
    worse = gate("broken", runs / "plain.json", settings)
    assert (worse.outcome, worse.exit_code) == ("regression", 1)
    assert "accuracy on own classes fell beyond the margin of 0.05" in (
        worse.checks[0].sentence
    )
    write_baseline("broken", tmp_path / "broken.json")
    better = gate("plain", tmp_path / "broken.json", settings)
    assert (better.outcome, better.exit_code) == ("pass", 0)


def test_a_run_passes_against_itself_at_a_wide_margin(runs: Path) -> None:
    settings = GateSettings(margin=0.2, utility_margin=0.2)
    found = gate("plain", runs / "plain.json", settings)
    assert {check.outcome for check in found.checks} == {"pass"}
    assert found.tested[0].estimate.value == 0


def test_the_headline_attack_is_asked_by_default(runs: Path) -> None:
    found = gate("broken", runs / "plain.json")
    names = [check.name for check in found.checks]
    assert names[:2] == ["loss-threshold AUROC", "accuracy on own classes"]
    assert names[2] == "claimed epsilon"


def test_too_narrow_a_margin_is_underpowered_with_the_n_it_takes(runs: Path) -> None:
    settings = replace(AUROC, margin=0.001)
    found = gate("plain", runs / "plain.json", settings)
    assert (found.outcome, found.exit_code) == ("underpowered", 3)
    assert "nothing differs, n = about" in found.checks[0].sentence


def test_an_open_change_names_the_attack_that_pairs_better(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RMIA's change is known to ±0.098, the loss's to ±0.02, and others' no better."""

    def asked(name: str) -> GateQuestion:
        error = 0.01 if name == "loss-threshold" else 0.05

        def at(confidence: float) -> Estimate:
            half = normal_quantile(confidence) * error
            return Estimate(0.0, -half, half, (50, 50), "z", confidence)

        return GateQuestion(f"{name} AUROC", "leak", "margin", 0.05, 0.5, 0.5, at)

    def questions(_: Any, __: Any, names: Any, ___: Any) -> Iterator[GateQuestion]:
        return map(asked, names)

    monkeypatch.setattr(Baseline, "questions", questions)
    settings = GateSettings(metrics=("auroc",))
    found = gate("shadowed", runs / "shadowed.json", settings)
    assert found.checks[0].name == "rmia AUROC"
    (note,) = (one for one in found.notes if "known to" in one)
    assert "rmia AUROC is known to ±0.098, and that of loss-threshold AUROC" in note
    assert "max_auroc" in note
    by_loss = replace(AUROC, attacks=("loss-threshold",))
    decided = gate("shadowed", runs / "shadowed.json", by_loss)
    assert not any("known to" in one for one in decided.notes)


def test_limits_need_no_baseline(runs: Path) -> None:
    settings = GateSettings(max_auroc=0.99, min_utility=0.999, shadows=0)
    found = gate("broken", None, settings)
    assert [check.outcome for check in found.checks[-1:]] == ["regression"]
    assert {check.outcome for check in found.checks[:-1]} == {"pass"}
    clients = Auditor(load_run("broken")).attack(shadows=0).headline.clients
    expected = pooled_auroc([client.groups for client in clients])
    assert found.tested[0].estimate == expected
    assert found.paired == "no baseline"


def test_nothing_to_ask_is_an_error(runs: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to ask"):
        gate("broken")
    with pytest.raises(ConfigError, match="nothing to ask"):
        gate("broken", runs / "plain.json", replace(AUROC, metrics=()))


def test_public_numbers_are_compared_without_pairing_and_it_is_said(
    runs: Path,
) -> None:
    audit = runs / "plain" / "audits" / "server-reconstruct" / "audit.json"
    settings = replace(AUROC, metrics=("auroc", "success", "utility"))
    loose = gate("broken", audit, settings)
    tight = gate("broken", runs / "plain.json", settings)
    assert loose.paired == "no"
    for wide, narrow in zip(loose.tested, tight.tested, strict=True):
        assert wide.question.name == narrow.question.name
        assert wide.estimate.value == pytest.approx(narrow.estimate.value, abs=1e-9)
        assert "Unpaired" in wide.sentence
    widths = [
        found.tested[0].estimate.high - found.tested[0].estimate.low
        for found in (loose, tight)
    ]
    assert widths[0] > widths[1]


def test_public_numbers_of_another_data_set_are_refused(
    runs: Path, tmp_path: Path
) -> None:
    audit = runs / "plain" / "audits" / "server-reconstruct" / "audit.json"
    contents = json.loads(audit.read_text())
    contents["config"]["dataset"] = "cifar10"
    path = tmp_path / "other.json"
    path.write_text(json.dumps(contents))
    with pytest.raises(
        IncompatibleRunsError, match=r"trained on digits, and other\.json is"
    ):
        gate("broken", path)
    contents["config"]["dataset"] = "digits"
    del contents["attack_results"]["loss-threshold"]["auroc"]["low"]
    path.write_text(json.dumps(contents))
    with pytest.raises(
        ConfigError, match="no estimate at attack_results/loss-threshold/auroc"
    ):
        gate("broken", path)


def test_a_baseline_keeps_what_the_adversarys_own_coins_add(runs: Path) -> None:
    """Without it an interval of an attack with shadow models would be too narrow."""
    audit = read_audit(load_run("shadowed"), "server-reconstruct")
    baseline = make_baseline(audit.run, audit.scenario)
    again = joined_audit(audit, baseline, ["rmia", "entropy"])
    for name in ("rmia", "entropy"):
        columns = again.columns[name]
        assert columns.keys() == audit.columns[name].keys()
        for column, values in columns.items():
            assert np.array_equal(values, audit.columns[name][column])
    assert LEFT_OUT in again.columns["rmia"]


def test_the_command_writes_a_baseline_and_ends_with_the_outcome(
    runs: Path, cli: Cli
) -> None:
    code, out, _ = cli("gate", "plain", "--write-baseline", "b.json")
    assert (code, "keep it private" in out) == (0, True)
    words = ("gate", "broken", "--baseline", "b.json", "--no-guarantees")
    code, out, _ = cli(*words, "--metrics", "utility")
    assert code == 1
    said = " ".join(out.split())
    assert "Regression: accuracy on own classes fell beyond the margin" in said
    assert "Regression: the one check found one (broken against plain" in said
    same = ("gate", "plain", *words[2:], "--metrics", "auroc")
    code, out, _ = cli(*same, "--margin", "0.2")
    said = " ".join(out.split())
    assert code == 0
    assert "Pass: the one check rules out what it looks for" in said
    assert "In plain words: nothing that was compared with" in said
    assert cli(*same, "--margin", "0.001")[0] == 3


def test_a_report_in_a_folder_that_is_not_there_is_refused_first(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    words = ("gate", "broken", "--min-utility", "0.9", "--markdown", "m.md")
    said = refused(cli, *words, "--junit", "none/j.xml")
    message = (
        "none/j.xml was to be written, and there is no folder none. Create it first"
    )
    assert message in " ".join(said.split())
    assert not (tmp_path / "m.md").exists()


def test_the_command_reads_pyproject_and_flags_win(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    text = '[tool.privaudit.gate]\nmetrics = ["auroc"]\nmargin = 0.001\n'
    (tmp_path / "pyproject.toml").write_text(text)
    assert cli("gate", "plain", "--write-baseline", "b.json")[0] == 0
    (tmp_path / "pyproject.toml").write_text(text + 'baseline = "b.json"\n')
    words = ("gate", "plain", "--json", "--settings-from", "pyproject.toml")
    code, out, _ = cli(*words)
    found = json.loads(out)
    assert code == found["exit_code"] == 3
    assert found["checks"][0]["limit"] == 0.001
    code, out, _ = cli(*words, "--margin", "0.2")
    assert (code, json.loads(out)["outcome"]) == (0, "pass")


def test_the_command_writes_all_three_reports(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    code, _, _ = cli(
        "gate", "broken", "--baseline", str(runs / "plain.json"), "--min-utility",
        "0.99", "--junit", "j.xml", "--sarif", "s.json", "--markdown", "m.md",
    )  # fmt: skip
    assert code == 1
    suite = ET.fromstring((tmp_path / "j.xml").read_text())
    assert suite.get("tests") == "8"  # two changes, a limit, and five epsilons
    sarif = json.loads((tmp_path / "s.json").read_text())
    rules = {result["ruleId"] for result in sarif["runs"][0]["results"]}
    assert {"utility-change", "utility-limit", "guarantee"} <= rules
    assert "❌ regression" in (tmp_path / "m.md").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["broken"], "nothing to ask"),
        (["broken", "--margin", "2"], "cannot take margin = 2.0"),
        (["broken", "--max-auroc", "1"], "cannot take max_auroc = 1.0"),
        (["broken", "--metrics", "f1"], "cannot take metrics.0"),
        (["broken", "--baseline", "no.json"], "There is no baseline no.json"),
        (["broken", "--baseline", "a", "--write-baseline", "b"], "Give one of the two"),
        (["broken", "--write-baseline", "b", "--junit", "j"], "junit and --write-base"),
        (["nobody", "--max-auroc", "0.99"], "nobody holds no run"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    runs: Path, words: list[str], says: str, cli: Cli
) -> None:
    err = refused(cli, "gate", *words)
    assert says in err
    assert err.count("\n") == 1


def test_members_that_are_certain_are_held_to_a_limit_of_their_own(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """3 % of members stand out: an AUROC of 0.52 passes, and their rate does not."""
    members, others = rng.normal(size=(2, 1000))
    members[:60] += 8
    audit = Auditor.from_scores(members, others, sampling="coin")
    save_audit(audit, tmp_path / "run")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"max_auroc": 0.6}, "pass"),
        ({"max_tpr": 0.15}, "pass"),
        ({"max_tpr": 0.07}, "underpowered"),
        ({"max_auroc": 0.6, "max_tpr": 0.03}, "regression"),
    ]
    for settings, outcome in cases:
        found = gate(
            tmp_path / "run", None, GateSettings(scenario="scores", **settings)
        )
        assert found.outcome == outcome
        assert any("(max_tpr)" in one for one in found.notes) == (
            len(settings) == 1
        ) * ("max_auroc" in settings)
    assert "scores share told at 1 % false alarms is 0.0" in found.checks[1].sentence


def test_a_rise_of_the_tail_is_compared_where_it_is_asked_for(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    members, others = rng.normal(size=(2, 1000))
    names, changed = np.arange(2000), members + 8 * (np.arange(1000) < 200)
    for name, scores in (("before", members), ("now", changed)):
        audit = Auditor.from_scores(scores, others, records=names, sampling="coin")
        save_audit(audit, tmp_path / name)
    asked = GateSettings(scenario="scores", metrics=("tpr",))
    before, now = (load_run(tmp_path / name) for name in ("before", "now"))
    assert gate(before, before, asked).outcome == "pass"
    assert gate(now, before, asked).outcome == "regression"
    assert gate(before, now, asked).outcome == "pass"
