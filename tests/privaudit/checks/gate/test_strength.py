"""Who checks less, or asks for less, than there was to be does not pass."""

import json
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from privaudit import load_run
from privaudit.checks.gate.baseline import Baseline, make_baseline, save_baseline
from privaudit.checks.gate.gate import GateResult, gate, write_baseline
from privaudit.checks.gate.settings import Configured, GateSettings, configure
from privaudit.checks.gate.strength import (
    AS_STRICT,
    AttackStrength,
    Relation,
    Shortfall,
    short_of_settings,
    that_options_choose,
    weaker_settings,
)
from privaudit.core.errors import ConfigError, TranscriptError, TrustError
from privaudit.core.signing import SECRET, TRUST, own_key, public_half
from privaudit.report.ci_formats import gate_junit, gate_markdown, gate_sarif
from privaudit.report.export import export_public
from tests.conftest import Cli
from tests.privaudit.checks.gate.conftest import git
from tests.privaudit.checks.gate.test_gate import rescored, shifted


def rmia(shadows: Any, mode: str = "online", attack: str = "Rmia") -> dict[str, Any]:
    """Return the settings of an attack, as ``repr`` writes them."""
    return {
        "settings": f"{attack}(shadows={shadows}, mode='{mode}', gamma=1.0, a=None)"
    }


BEFORE = AttackStrength(**rmia(8), clients=("a", "b"), n=(20, 21))


@pytest.mark.parametrize(
    ("changes", "relation", "why"),
    [
        ({}, "same", ""),
        (rmia(16), "stronger", "shadows is 16 and not 8"),
        (rmia(6), "weaker", "shadows is 6 and not 8"),
        (rmia(8, "offline"), "another", "mode='offline'"),
        (rmia(16, "offline"), "another", "mode='offline'"),
        (rmia(8, attack="Weak"), "another", ""),
        ({"settings": "Rmia(shadows=8)"}, "another", ""),
        (rmia("many"), "another", ""),
        ({"settings": "64 shadows, by hand"}, "another", "by hand"),
        ({"package": "others 1.2"}, "another", "others 1.2 and not built in"),
        ({"clients": ("a", "b", "c")}, "same", ""),
        ({"clients": ("a", "c")}, "weaker", "not attacked: b"),
        ({"n": (20, 20)}, "weaker", "it has 20 + 20 candidates and not 20 + 21"),
        ({"n": (20, 22)}, "same", ""),
    ],
)
def test_an_attack_is_placed_beside_the_baselines(
    changes: dict[str, Any], relation: Relation, why: str
) -> None:
    found, said = replace(BEFORE, **changes).than(BEFORE)
    assert found == relation
    assert why in said


def test_more_shadows_do_not_make_up_for_a_client_that_is_missing() -> None:
    now = AttackStrength(**rmia(16), clients=("a",), n=(20, 21))
    assert now.than(BEFORE) == ("weaker", "not attacked: b")


def test_numbers_that_do_not_say_how_they_were_made_are_another_attacks() -> None:
    assert BEFORE.than(AttackStrength(None))[0] == "another"
    assert BEFORE.than(AttackStrength(BEFORE.settings))[0] == "same"


def test_what_no_option_leaves_out_is_not_asked_for() -> None:
    made = {"rmia": BEFORE, "loss-threshold as server-aggregate": BEFORE}
    assert [*that_options_choose(made, "server-reconstruct")] == ["rmia"]


SCENARIO = "server-reconstruct"
USUAL = GateSettings()
FULL = GateSettings(
    metrics=("auroc", "success", "utility"), attacks=("rmia", "lira"), max_auroc=0.6,
    min_utility=0.8, shadows=16, clients=4, baseline="b.json",
)  # fmt: skip


@pytest.mark.parametrize(
    ("before", "changes", "weaker"),
    [
        (USUAL, {}, []),
        (FULL, {}, []),
        (USUAL, {"metrics": ("utility",)}, ["metrics"]),
        (USUAL, {"metrics": ("utility", "success", "auroc")}, []),
        (USUAL, {"guarantees": False}, ["guarantees"]),
        (replace(USUAL, guarantees=False), {"guarantees": True}, []),
        (USUAL, {"margin": 0.06}, ["margin"]),
        (USUAL, {"margin": 0.04, "utility_margin": 0.2}, ["utility_margin"]),
        (USUAL, {"alpha": 0.1}, ["alpha"]),
        (USUAL, {"alpha": 1e-9}, ["alpha"]),  # no regression would be one
        (USUAL, {"attacks": ("entropy",)}, ["attacks"]),
        (USUAL, {"attacks": ("entropy", "rmia")}, []),  # rmia is the headline
        (FULL, {"attacks": ("rmia",)}, ["attacks"]),
        (FULL, {"max_auroc": 0.61}, ["max_auroc"]),
        (FULL, {"max_auroc": None}, ["max_auroc"]),
        (FULL, {"max_auroc": 0.5, "min_utility": 0.9}, []),
        (FULL, {"min_utility": 0.7}, ["min_utility"]),
        (FULL, {"min_utility": None}, ["min_utility"]),
        (FULL, {"shadows": 8}, ["shadows"]),
        (FULL, {"shadows": None}, ["shadows"]),
        (USUAL, {"shadows": 0}, ["shadows"]),
        (FULL, {"shadows": 64, "clients": "all"}, []),
        (FULL, {"clients": 3}, ["clients"]),
        (FULL, {"clients": None}, []),
        (USUAL, {"clients": 1}, ["clients"]),
        (FULL, {"baseline": None}, ["baseline"]),
        (FULL, {"baseline": "c.json"}, ["baseline"]),
        (USUAL, {"baseline": "c.json"}, []),
        (USUAL, {"scenario": "curious-peer"}, ["scenario"]),
        (replace(USUAL, scenario="curious-peer"), {"scenario": SCENARIO}, []),
    ],
)
def test_a_setting_that_asks_for_less_is_found(
    before: GateSettings, changes: dict[str, Any], weaker: list[str]
) -> None:
    found = weaker_settings(replace(before, **changes), before, "rmia")
    assert [name for name, _, _ in found] == weaker


def test_every_setting_has_an_order() -> None:
    assert {*AS_STRICT} == {one.name for one in fields(GateSettings)}


AUROC = GateSettings(metrics=("auroc",), margin=0.2)
ON_SHADOWS = ["lira", "rmia", "shadow"]


def codes(found: GateResult) -> dict[str, list[str]]:
    short = [check for check in found.checks if isinstance(check, Shortfall)]
    return {
        code: sorted(one.name for one in short if one.code == code)
        for code in sorted({one.code for one in short})
    }


@pytest.mark.parametrize(
    ("run", "against", "exit_code", "said"),
    [
        ("shadowed", "shadowed", 0, {}),
        ("shadowed", "fewer", 0, {}),  # stronger
        ("plain", "plain", 0, {}),
        ("shadowed", "plain", 0, {}),  # more attacks than the baseline had
        ("plain", "shadowed", 3, {"missing attack": ON_SHADOWS}),
        ("fewer", "shadowed", 3, {"weaker attack": ON_SHADOWS}),
        ("one-client", "shadowed", 3, {"weaker attack": ON_SHADOWS}),
        ("shadowed", "one-client", 0, {}),
    ],
)
def test_who_weakens_the_attack_does_not_pass(
    runs: Path, run: str, against: str, exit_code: int, said: dict[str, list[str]]
) -> None:
    """Of one run's models, so that whatever else is asked passes."""
    found = gate(run, load_run(against), AUROC)
    assert (found.exit_code, codes(found)) == (exit_code, said)
    limited = replace(AUROC, metrics=("utility",), utility_margin=0.2, max_auroc=0.9)
    found = gate(run, load_run(against), limited)
    assert (found.exit_code, codes(found)) == (exit_code, said)
    assert gate(run, load_run(against), replace(limited, max_auroc=None)).exit_code == 0


def test_the_sentence_names_the_command_that_makes_what_is_missing(runs: Path) -> None:
    found = gate("plain", runs / "shadowed.json", AUROC)
    (said,) = (one.sentence for one in found.checks if one.name == "rmia")
    assert said == (
        "Undecided: rmia was not made, and the baseline was attacked by it (8 shadow "
        "models, 3 clients). Make the audit again: `privaudit attack plain --scenario "
        "server-reconstruct --shadows 8`."
    )
    assert found.sentence.startswith("Undecided: 3 of 8 checks are not decided")


def test_an_attack_of_other_settings_is_not_compared(runs: Path) -> None:
    baseline = make_baseline(load_run("plain"), SCENARIO)
    other = replace(baseline.attacks["entropy"], settings="Entropy(per_class=False)")
    changed = replace(baseline, attacks={**baseline.attacks, "entropy": other})
    found = gate("plain", changed, replace(AUROC, attacks=("entropy",)))
    assert (found.exit_code, codes(found)) == (3, {"another attack": ["entropy"]})
    assert found.tested == ()
    named = {**baseline.attacks, "rmia:mode=offline": other}
    found = gate("plain", replace(baseline, attacks=named), AUROC)
    assert codes(found) == {"missing attack": ["rmia:mode=offline"]}
    said = found.checks[-1].sentence
    assert "--shadows 0 --attack rmia:mode=offline`" in said


def test_a_regression_stays_one_unless_only_the_attack_was_stronger(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weaker attack that finds more has found it; a stronger one may be why."""
    bases = {n: make_baseline(load_run(n), SCENARIO) for n in ("shadowed", "fewer")}
    monkeypatch.setattr(
        "privaudit.checks.gate.gate.read_audit", rescored("rmia", shifted(3.0))
    )
    outcomes = {}
    for against in ("shadowed", "fewer"):
        for run in ("fewer", "shadowed"):
            found = gate(run, bases[against], replace(AUROC, attacks=("rmia",)))
            (check,) = found.tested
            outcomes[run, against] = found.exit_code, check.outcome
    assert outcomes == {
        ("fewer", "shadowed"): (1, "regression"),
        ("shadowed", "shadowed"): (1, "regression"),
        ("fewer", "fewer"): (1, "regression"),
        ("shadowed", "fewer"): (3, "underpowered"),
    }
    assert "the attack was stronger than the baseline's" in check.sentence


@pytest.mark.parametrize(
    ("run", "settings", "exit_code", "said"),
    [
        ("shadowed", {}, 0, {}),
        ("plain", {}, 3, {"missing attack": ["rmia"]}),
        ("plain", {"shadows": 0}, 0, {}),
        ("plain", {"attacks": ("loss-threshold",)}, 0, {}),
        ("plain", {"attacks": ("rmia",)}, 3, {"missing attack": ["rmia"]}),
        ("plain", {"shadows": 16, "attacks": ("entropy",)}, 0, {}),
        ("shadowed", {"shadows": 16}, 3, {"weaker attack": ["rmia"]}),
        ("shadowed", {"shadows": 8}, 0, {}),
        ("one-client", {}, 3, {"weaker attack": ["rmia"]}),
        ("one-client", {"clients": 1}, 0, {}),
        ("shadowed", {"clients": 2}, 0, {}),
    ],
)
def test_a_limit_asks_for_the_strength_that_settings_state(
    runs: Path, run: str, settings: dict[str, Any], exit_code: int, said: dict[str, Any]
) -> None:
    found = gate(run, None, GateSettings(max_auroc=0.9, **settings))
    assert (found.exit_code, codes(found)) == (exit_code, said)


def test_settings_ask_for_more_than_a_weak_baseline(runs: Path) -> None:
    asked = replace(AUROC, shadows=16)
    found = gate("shadowed", runs / "shadowed.json", asked)
    assert codes(found) == {"weaker attack": ON_SHADOWS}


def test_the_result_says_which_attacks_decided_and_how_strong_they_were(
    runs: Path, cli: Cli
) -> None:
    found = gate("shadowed", runs / "shadowed.json", AUROC)
    said = "Attacks that decided: rmia (8 shadow models, 3 clients)."
    assert found.notes[0] == said
    assert found.to_dict()["notes"] == [*found.notes]
    words = ("gate", "shadowed", "--max-auroc", "0.9")
    printed = " ".join(cli(*words)[1].split())
    assert "rmia, lira, shadow (8 shadow models, 3 clients); loss-threshold," in printed


def test_reports_show_what_was_not_checked(runs: Path) -> None:
    found = gate("plain", runs / "shadowed.json", AUROC)
    assert 'type="underpowered"' in gate_junit(found)
    kinds = {
        one["ruleId"]: one["kind"] for one in gate_sarif(found)["runs"][0]["results"]
    }
    assert kinds == {"strength": "open"}
    assert "missing attack" in gate_markdown(found)
    stored = json.loads(json.dumps(found.to_dict()))
    assert stored["checks"][-1]["code"] == "missing attack"


def test_a_baseline_by_fewer_shadows_than_usual_asks_for_no_more() -> None:
    one = {"rmia": AttackStrength("Rmia(shadows=1, mode='offline')", "", ("a",))}
    for by_default, count in ((True, 1), (False, 0)):
        found = short_of_settings("run", one, USUAL, None, by_default=by_default)
        assert len([*found]) == count


# What a pull request can change in its own pyproject.toml.

TABLE = '[tool.privaudit.gate]\nattacks = ["loss-threshold"]\nmargin = 0.2\nmax_auroc = 0.9\n'
WEAKER = {
    "metrics": 'metrics = ["utility"]\n',
    "guarantees": "guarantees = false\n",
    "margin": TABLE.replace("0.2", "0.3"),
    "max_auroc": TABLE.replace("max_auroc = 0.9\n", ""),
    "utility_margin": "utility_margin = 0.5\n",
    "alpha": "alpha = 0.2\n",
    "attacks": TABLE.replace("loss-threshold", "entropy"),
    "shadows": "shadows = 0\n",
    "clients": "clients = 1\n",
}


def write_settings(place: Path, name: str = "") -> None:
    text = WEAKER.get(name, "")
    whole = text if text.startswith("[") else TABLE + text
    (place / "pyproject.toml").write_text(whole)


@pytest.mark.parametrize("name", WEAKER)
def test_who_weakens_a_setting_does_not_pass(
    runs: Path, tmp_path: Path, cli: Cli, name: str
) -> None:
    write_settings(tmp_path)
    assert cli("gate", "plain", "--write-baseline", "b.json")[0] == 0
    words = ("gate", "plain", "--baseline", "b.json")
    assert cli(*words)[0] == 0
    shutil.copy("pyproject.toml", "target.toml")
    write_settings(tmp_path, name)
    for place in ([], ["--settings-from", "target.toml"]):
        code, out, _ = cli(*words, *place, "--json")
        found = json.loads(out)
        (bad,) = (one for one in found["checks"] if one["outcome"] == "regression")
        assert (code, bad["name"], bad["code"]) == (1, name, "weaker setting")
        assert f"the setting {name} is " in bad["sentence"]


def test_limits_alone_are_held_to_the_target_branchs_settings(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    write_settings(tmp_path)
    shutil.copy("pyproject.toml", "target.toml")
    assert cli("gate", "plain")[0] == 0
    words = ("gate", "plain", "--settings-from", "target.toml")
    assert cli(*words)[0] == 0
    (tmp_path / "pyproject.toml").write_text(TABLE.replace("0.9", "0.99"))
    assert cli("gate", "plain")[0] == 0  # nothing to compare with
    assert cli(*words)[0] == 1


def test_what_an_option_weakens_is_reported_and_accepted(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    write_settings(tmp_path)
    cli("gate", "plain", "--write-baseline", "b.json")
    words = ("gate", "plain", "--baseline", "b.json", "--margin", "0.4")
    code, out, _ = cli(*words, "--no-guarantees")
    printed = " ".join(out.split())
    assert code == 0
    for said in ("margin is 0.4 and not 0.2", "guarantees is False and not True"):
        assert f"by an option: {said}" in printed


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_settings_are_read_from_the_target_branch_and_revisions_are_held(
    runs: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git("init", "-q", "-b", "main")
    write_settings(tmp_path)
    git("add", "pyproject.toml")
    git("commit", "-q", "-m", "settings")
    write_baseline(
        "plain", tmp_path / "b.json", settings=GateSettings(guarantees=False)
    )
    git("checkout", "-q", "-b", "change")
    write_settings(tmp_path, "guarantees")
    git("commit", "-q", "-a", "-m", "weaker")
    words = ("gate", "plain", "--baseline", "b.json", "--settings-from")
    assert cli(*words, "change")[0] == 0
    code, out, _ = cli(*words, "main")
    printed = " ".join(out.split())
    assert code == 1
    assert "the setting guarantees is False here and True in main" in printed
    assert re.search(r"The baseline is of revision [0-9a-f]{12}, 1 commit ago", printed)
    for wrong in ("--all", "nowhere"):
        with pytest.raises(ConfigError, match="no revision that git finds"):
            configure(settings_from=wrong)
    git("checkout", "-q", "--orphan", "other")
    git("commit", "-q", "-m", "of another past")
    found = gate("plain", tmp_path / "b.json", replace(AUROC, guarantees=False))
    assert (found.exit_code, codes(found)) == (3, {"another branch": ["baseline"]})


def test_a_change_does_not_choose_its_own_baseline(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    """Its own settings would be what those of the change are held against."""
    (tmp_path / "target.toml").write_text(TABLE)
    weak = TABLE.replace("0.2", "0.9") + 'baseline = "weak.json"\n'
    (tmp_path / "pyproject.toml").write_text(weak)
    cli("gate", "plain", "--write-baseline", "weak.json")
    for place in ([], ["--settings-from", "target.toml", "--margin", "0.9"]):
        code, out, _ = cli("gate", "plain", *place, "--json")
        (bad,) = (o for o in json.loads(out)["checks"] if o["outcome"] != "pass")
        assert (code, bad["name"], bad["code"]) == (3, "baseline", "unheld settings")
        assert "Add --baseline weak.json; or give --settings-from" in bad["sentence"]
    assert cli("gate", "plain", "--baseline", "weak.json")[0] == 0
    assert gate("plain", "weak.json", configure()).exit_code == 0  # the caller's choice
    (tmp_path / "target.toml").write_text(weak)
    assert cli("gate", "plain", "--settings-from", "target.toml")[0] == 0


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_a_baseline_older_than_the_target_branch_or_of_no_revision_is_reported(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = make_baseline(load_run("plain"), SCENARIO)
    git("commit", "-q", "--allow-empty", "-m", "two")
    git("checkout", "-q", "-b", "change")
    git("commit", "-q", "--allow-empty", "-m", "three")
    asked = Configured(AUROC, reference=AUROC, source="main")

    def noted(baseline: Baseline) -> str:
        found = gate("plain", baseline, asked)
        assert found.exit_code == 0
        return " ".join(found.notes)

    assert "older than main, which has 1 commit since: a newer one" in noted(first)
    newest = make_baseline(load_run("plain"), SCENARIO)
    assert "older than" not in noted(newest)
    assert "Nothing says of which revision" not in noted(newest)
    nobody_knows = replace(newest, revision=None)
    assert "Nothing says of which revision the baseline is" in noted(nobody_knows)


# Whom a baseline is believed.


def test_a_baseline_of_another_version_is_stale(runs: Path) -> None:
    old = replace(make_baseline(load_run("plain"), SCENARIO), tool="0.0.9")
    found = gate("plain", old, AUROC)
    assert (found.exit_code, codes(found)) == (3, {"another version": ["baseline"]})


@pytest.mark.parametrize("field", [*Baseline.__dataclass_fields__, "sensitive"])
def test_no_field_can_be_altered(runs: Path, tmp_path: Path, field: str) -> None:
    contents = json.loads((runs / "shadowed.json").read_text())
    contents[field] = "another" if isinstance(contents[field], str) else {"x": 1}
    path = tmp_path / "b.json"
    path.write_text(json.dumps(contents))
    with pytest.raises(TranscriptError, match="not as it was signed"):
        gate("plain", path, AUROC)


def test_a_signature_of_something_else_does_not_fit(runs: Path, tmp_path: Path) -> None:
    contents = json.loads((runs / "shadowed.json").read_text())
    for other in (runs / "plain.json", runs / "plain" / "run.json"):
        contents["signature"] = json.loads(other.read_text())["signature"]
        path = tmp_path / "b.json"
        path.write_text(json.dumps(contents))
        with pytest.raises(TranscriptError, match="not as it was signed"):
            gate("plain", path, AUROC)


def test_another_machines_key_is_trusted_by_its_name_only(
    runs: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = make_baseline(load_run("plain"), SCENARIO)
    with pytest.MonkeyPatch.context() as elsewhere:
        elsewhere.setenv(SECRET, "7" * 64)
        path = save_baseline(baseline, tmp_path / "b.json")
        key = public_half(own_key())
    with pytest.raises(TrustError, match=f"privaudit key trust {key}"):
        gate("plain", path, AUROC)
    assert cli("gate", "plain", "--baseline", str(path))[0] == 2
    monkeypatch.setenv(TRUST, key)
    assert gate("plain", path, AUROC).exit_code == 0


def test_numbers_that_nobody_signed_are_no_pass_unless_somebody_says_so(
    runs: Path, tmp_path: Path, cli: Cli
) -> None:
    asked = ("gate", "plain", "--metrics", "auroc", "--margin", "0.3")
    audit = runs / "plain" / "audits" / SCENARIO / "audit.json"
    assert cli(*asked, "--baseline", audit)[0] == 0  # the run's signature covers it
    copy = shutil.copy(audit, tmp_path / "audit.json")
    export_public("plain", tmp_path / "card")
    for path in (copy, tmp_path / "card"):
        found = gate("plain", path, replace(AUROC, margin=0.3))
        assert (found.exit_code, codes(found)) == (3, {"unsigned": ["baseline"]})
        assert cli(*asked, "--baseline", path, "--accept-unsigned")[0] == 0


def test_public_numbers_name_the_attack_that_is_asked(runs: Path) -> None:
    audit = runs / "shadowed" / "audits" / SCENARIO / "audit.json"
    wide = replace(AUROC, margin=0.3)
    assert gate("shadowed", audit, wide).exit_code == 0
    assert codes(gate("plain", audit, wide)) == {"missing attack": ON_SHADOWS}
    assert codes(gate("fewer", audit, wide)) == {"weaker attack": ON_SHADOWS}
    assert codes(gate("one-client", audit, wide)) == {"weaker attack": ["rmia"]}


def test_a_change_of_the_trainer_is_reported_and_can_pass(runs: Path) -> None:
    asked = replace(AUROC, margin=0.9, guarantees=False)
    found = gate("broken", runs / "plain.json", asked)
    (said,) = (note for note in found.notes if note.startswith("The run differs"))
    assert "trainer is promptfl and not zero-shot" in said
    assert found.exit_code == 0


def test_settings_given_in_python_are_the_callers_choice(runs: Path) -> None:
    weaker = replace(AUROC, guarantees=False)
    assert gate("plain", runs / "plain.json", weaker).exit_code == 0
    found = gate("plain", runs / "plain.json", Configured(weaker, chosen=("margin",)))
    assert codes(found) == {"weaker setting": ["guarantees", "metrics"]}
