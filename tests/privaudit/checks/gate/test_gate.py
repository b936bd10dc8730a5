import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, load_run
from privaudit.auditing.storage.load import LEFT_OUT, read_audit
from privaudit.checks.gate.baseline import joined_audit, make_baseline
from privaudit.checks.gate.gate import gate, write_baseline
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.evaluation.compare.compare import compare
from privaudit.statistics.roc import pooled_auroc
from tests.privaudit.checks.gate.test_max_auroc import rescored, shifted

AUDIT = "plain/audits/server-reconstruct/audit.json"
AUROC = GateSettings(attacks=("loss-threshold",), metrics=("auroc",), guarantees=False)


def test_it_finds_what_a_comparison_of_the_two_runs_finds(runs: Path) -> None:
    settings = replace(AUROC, metrics=("auroc", "success"))
    found = gate("broken", runs / "plain.json", settings)
    expected = compare("broken", "plain", attacks=["loss-threshold"], utility=False)
    assert found.paired == "record"
    for check, change in zip(found.tested, expected.changes, strict=True):
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
    del contents["leaks"]["loss-threshold"]["auroc"]["low"]
    path.write_text(json.dumps(contents))
    with pytest.raises(ConfigError, match="no estimate at leaks/loss-threshold/auroc"):
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
