"""Claimed and certified epsilons beside a baseline's: compared exactly."""

import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privaudit import Run, load_run
from privaudit.auditing.audit import Audit
from privaudit.auditing.stored_audit import read_audit, restore_audit
from privaudit.checks.gate.baseline import read_contents
from privaudit.checks.gate.gate import check_against, gate, write_baseline
from privaudit.checks.gate.guarantees import (
    Stated,
    compare_guarantees,
    stated,
    why_weaker,
)
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.report.ci_formats import gate_junit, gate_markdown, gate_sarif
from privaudit.report.export import export_public
from tests.altered_cards import alter_card
from tests.conftest import Cli

WIDE = GateSettings(margin=0.9, utility_margin=0.9)
EIGHT = Stated(8.0, 1e-5, "record", "add/remove-one", "system")
ONLY = GateSettings(metrics=())


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, ""),
        ({"epsilon": 7.5}, ""),
        ({"epsilon": math.nextafter(8.0, 9.0)}, ""),  # another processor's last digit
        ({"epsilon": 8.0000001}, "it rose"),
        ({"epsilon": None}, "there is none any more"),
        ({"delta": 1e-6}, ""),
        ({"delta": 1e-4}, "delta rose from 1e-05 to 0.0001, so that the two"),
        ({"delta": 1e-4, "epsilon": 9.0}, "delta rose from 1e-05 to 0.0001"),
        ({"unit": "client"}, "cannot be compared, as it protects one client"),
        ({"adjacency": "replace-one"}, "cannot be compared, as it protects one record"),
        ({"unit": "client", "adjacency": "replace-one"}, ""),
        ({"unit": "client", "epsilon": 0.0}, ""),
        ({"randomness": "seed"}, "repeatable, not private"),
        ({"randomness": None}, "repeatable, not private"),
        ({"randomness": "seed", "epsilon": 1.0}, "repeatable, not private"),
    ],
)
def test_weaker_is_what_is_larger_gone_or_not_comparable(
    now: dict[str, Any], why: str
) -> None:
    said = why_weaker(replace(EIGHT, **now), EIGHT)
    assert why in said
    assert bool(said) == bool(why)


def test_a_client_is_more_than_a_record_and_not_the_other_way_round() -> None:
    client = replace(EIGHT, unit="client", adjacency="replace-one")
    assert "one record" in why_weaker(EIGHT, client)


def test_where_nothing_was_stated_nothing_is_lost_and_silence_is_no_statement() -> None:
    none = {"claimed epsilon": replace(EIGHT, epsilon=None)}
    assert list(compare_guarantees(none, none)) == []
    with pytest.raises(ConfigError, match="lacks the claimed and certified epsilons"):
        list(compare_guarantees(none, {}))


def test_a_view_that_vanishes_is_a_regression() -> None:
    (found,) = compare_guarantees({}, {"certified epsilon (peer)": EIGHT})
    assert found.outcome == "regression"
    assert "certified epsilon (peer) was 8 at delta 1e-05" in found.sentence


@pytest.mark.parametrize(
    "changed",
    [{"epsilon": "8"}, {"epsilon": math.inf}, {"epsilon": -1.0}, {"epsilon": True},
     {"delta": 1.0}, {"delta": None}, {"unit": 3}],
)  # fmt: skip
def test_what_is_no_guarantee_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        replace(EIGHT, **changed)


def declared(epsilon: float | None, word: float | None) -> dict[str, Stated]:
    """What a run states whose mechanisms nothing here applied, or did."""
    entry = {"epsilon": epsilon, "delta": 1e-5, "view": "peer", "randomness": "system"}
    if word is not None:
        entry["declared"] = word
    claim = {"epsilon": 8.0, "delta": 1e-5}
    return stated({"claimed": claim, "certified": {"peer": entry}})


@pytest.mark.parametrize(
    ("now", "before", "outcome", "said"),
    [
        (
            (None, 8.0),
            (8.0, None),
            "regression",
            "is declared, and nothing here applied",
        ),
        ((None, 0.01), (8.0, None), "regression", "there is none any more"),
        ((None, 8.0), (None, 8.0), "pass", "declared epsilon (peer)"),
        ((None, 9.0), (None, 8.0), "regression", "it rose"),
        ((None, None), (None, 8.0), "regression", "there is none any more"),
        ((7.9, None), (None, 8.0), "pass", "declared epsilon (peer) was 8"),
    ],
)
def test_what_is_declared_never_stands_in_for_what_was_certified(
    now: tuple[float | None, float | None],
    before: tuple[float | None, float | None],
    outcome: str,
    said: str,
) -> None:
    checks = list(compare_guarantees(declared(*now), declared(*before)))
    (found,) = [check for check in checks if check.name != "claimed epsilon"]
    assert (found.outcome, said in found.sentence) == (outcome, True)


def test_a_run_states_a_claim_and_a_certificate_for_each_view(runs: Path) -> None:
    found = stated(load_run("private").privacy)
    assert found["claimed epsilon"].epsilon == 8
    assert found["certified epsilon (server)"].epsilon is None  # noise is added there
    assert 7 < (found["certified epsilon (peer)"].epsilon or 0) <= 8
    assert len(found) == 5


def files(runs: Path, tmp_path: Path) -> dict[str, Path]:
    """Return what "private" can be compared with, in each of its forms."""
    write_baseline("private", tmp_path / "b.json")
    run = Run(shutil.copytree(runs / "private", tmp_path / "copy"))
    export_public(run, tmp_path / "public")
    audit = runs / "private" / "audits" / "server-reconstruct" / "audit.json"
    return {"baseline": tmp_path / "b.json", "card": tmp_path / "public",
            "audit": audit}  # fmt: skip


def test_removing_privacy_is_a_regression_whatever_the_attacks_say(
    runs: Path, tmp_path: Path
) -> None:
    for form, path in files(runs, tmp_path).items():
        same = gate("private", path, ONLY)
        assert same.exit_code == 0, form
        same = gate("private", path, ONLY, accept_unsigned=True)
        assert (same.outcome, same.exit_code) == ("pass", 0), form
        for settings in (WIDE, ONLY):
            found = gate("tuned", path, settings)
            assert found.exit_code == 1, form
            bad = [c.name for c in found.checks if c.outcome == "regression"]
            assert "claimed epsilon" in bad
            if form != "audit":
                assert "certified epsilon (peer)" in bad
                assert "certified epsilon (released)" in bad
        assert "claimed epsilon was 8 at delta 1e-05" in " ".join(
            check.sentence for check in found.checks
        )


def test_more_privacy_passes_and_a_little_less_does_not(
    runs: Path, tmp_path: Path
) -> None:
    path = write_baseline("private", tmp_path / "b.json")
    assert gate("more-private", path, ONLY).outcome == "pass"
    weaker = write_baseline("more-private", tmp_path / "m.json")
    found = gate("private", weaker, ONLY)
    assert found.outcome == "regression"
    assert "is 8 at delta" in found.checks[0].sentence
    assert found.checks[0].sentence.endswith(": it rose.")


def test_settings_may_leave_guarantees_out_and_the_terminal_says_so(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    write_baseline("private", tmp_path / "b.json")
    words = ("gate", "tuned", "--baseline", "b.json", "--metrics", "auroc")
    code, out, _ = cli(*words, "--margin", "0.9")
    said = " ".join(out.split())
    assert code == 1
    assert "Regression: claimed epsilon was 8 at delta 1e-05" in said
    assert "Epsilons are compared exactly" in said
    code, out, _ = cli(*words, "--margin", "0.9", "--no-guarantees")
    assert code == 0
    assert "Epsilons are not compared, as the settings say" in " ".join(out.split())


def test_every_report_names_the_epsilon_that_fell(runs: Path, tmp_path: Path) -> None:
    path = write_baseline("private", tmp_path / "b.json")
    found = gate("tuned", path, WIDE)
    bad = [check for check in found.checks if check.outcome == "regression"]
    suite = ET.fromstring(gate_junit(found).partition("\n")[2])
    failed = {case.get("name") for case in suite.iter("testcase") if len(case) and
              case.find("failure") is not None}  # fmt: skip
    assert failed == {f"{check.name}: guarantee" for check in bad}
    results = gate_sarif(found)["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == {"guarantee"}
    assert len(results) == len(bad)
    assert {result["level"] for result in results} == {"error"}
    text = re.sub(" +", " ", gate_markdown(found))
    assert "| claimed epsilon | no rise | ❌ regression |" in text
    assert "Regression: claimed epsilon is weaker than before." in text
    check = found.to_dict()["checks"][-1]
    assert (check["about"], check["before"]["delta"]) == ("guarantee", 1e-5)
    assert json.loads(json.dumps(check)) == check


def altered(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    contents = read_contents(path)
    change(contents)
    path.write_text(json.dumps(contents))
    return path


def test_a_baseline_without_them_or_with_others_is_refused(
    runs: Path, tmp_path: Path
) -> None:
    path = write_baseline("private", tmp_path / "b.json")
    altered(path, lambda c: c["guarantees"].clear())
    with pytest.raises(TranscriptError, match="not as it was signed"):
        gate("tuned", path, ONLY)
    altered(path, lambda c: c.update(baseline=1))
    with pytest.raises(ConfigError, match="baseline format 1"):
        gate("tuned", path, ONLY)
    run = Run(shutil.copytree(runs / "private", tmp_path / "private"))
    export_public(run, tmp_path / "public")
    card = alter_card(
        tmp_path / "public", lambda c: c["privacy"]["claimed"].update(epsilon="8")
    )
    with pytest.raises(ConfigError, match="is no audit card"):
        gate("tuned", card, ONLY)


def test_a_card_of_whole_clients_states_no_guarantee_and_can_be_compared(
    runs: Path, tmp_path: Path
) -> None:
    """Export leaves certificates out where membership enters them."""
    run = Run(shutil.copytree(runs / "private", tmp_path / "private"))
    export_public(run, tmp_path / "public")
    path = tmp_path / "public" / "card.json"
    said = "card.json states no guarantee, so none is compared."
    assert said not in gate("private", path, WIDE, accept_unsigned=True).notes
    alter_card(path, lambda c: c["privacy"]["certified"].clear())
    found = gate("private", path, WIDE, accept_unsigned=True)
    assert (found.exit_code, said in found.notes) == (0, True)
    assert {check.rule for check in found.checks} == {"leak-change", "utility-change"}


def audited(name: str) -> Audit:
    return restore_audit(read_audit(load_run(name), "server-reconstruct"))


def test_a_run_alone_can_be_held_to_a_baseline(runs: Path, tmp_path: Path) -> None:
    path = write_baseline("private", tmp_path / "b.json")
    outcomes = [one.outcome for one in check_against(audited("tuned"), path)]
    assert set(outcomes) == {"regression"}
    outcomes = [one.outcome for one in check_against(audited("private"), path)]
    assert set(outcomes) == {"pass"}
