"""What was planned before training is held against what is audited."""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, Run, gate, train
from privaudit.auditing.repetition.audit_log import (
    count_tried,
    log_audit,
    logged,
    read_log,
)
from privaudit.auditing.repetition.correction import recount
from privaudit.auditing.repetition.plan import make_plan, parse_plan, read_plan
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.storage.save import save_audit
from privaudit.checks.gate.settings import GateSettings
from privaudit.core.errors import ConfigError, TranscriptError
from privaudit.report.export import export_public
from privaudit.report.export.verify import verify_card
from tests.conftest import Cli, common_cache
from tests.privaudit.auditing.repetition.test_audit_log import scored

ASKED = {"attacks": [], "clients": "all", "shadows": 0, "budget": None, "seed": 0}
SMALL = ("--rounds", 1, "--clients", 3, "--set", "epochs=1")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, and a run that was trained with it."""
    from privaudit.auditing.repetition.plan import write_plan

    folder = tmp_path_factory.mktemp("planned")
    planned = make_plan({"server-reconstruct": ASKED}, {"max_auroc": 0.9})
    write_plan(planned, folder / "plan.json")
    with common_cache(tmp_path_factory):
        train(
            folder=folder, name="mine", rounds=1, clients=3, epochs=1,
            plan=folder / "plan.json", seed=0
        )  # fmt: skip
    return folder


@pytest.fixture
def folder(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = shutil.copytree(begun, tmp_path / "planned")
    monkeypatch.setenv("PRIVAUDIT_RUNS", str(place))
    return place


def test_a_plan_is_made_trained_with_and_carried_out_by_its_commands(
    folder: Path, tmp_path: Path, cli: Cli
) -> None:
    place = tmp_path / "other.json"
    words = ("--shadows", 0, "--max-auroc", 0.95)
    code, printed, err = cli("plan", place, *words)
    assert code == 0, err
    assert read_plan(place).hash in printed
    (audit,) = read_plan(place).audits
    assert (audit.scenario, audit.asked) == ("server-reconstruct", ASKED)
    code, _, err = cli("plan", place, *words)
    assert code == 2
    assert "made once" in err
    code, _, err = cli("train", "--seed", 0, *SMALL, "--name", "mine", "--plan", place)
    assert code == 2
    assert "another plan" in err
    code, printed, err = cli("attack", "mine", "--planned")
    assert code == 0, err
    assert "As planned before training" in re.sub(r"\s+", " ", printed)
    assert [one.as_planned for one in read_log(Run(folder / "mine"))] == [True]
    code, _, err = cli("attack", "mine", "--planned", "--seed", 3)
    assert code == 2
    assert "--planned was given, and options" in err


def test_others_do_not_correct_what_was_planned_and_it_corrects_them(
    folder: Path, tmp_path: Path
) -> None:
    run = Run(folder / "mine")
    audit = Auditor(run).attack(shadows=0)
    save_audit(audit)
    other = scored(200, 1, 0.15)
    for seed in range(1, 6):
        asked = {**ASKED, "seed": seed}
        found = other if seed == 1 else scored(seed=seed)
        log_audit(
            run, "server-reconstruct", seed, logged({"loss-threshold": found}), asked
        )
    again = recount(audit)
    assert (again.tried.made, again.tried.different) == (6, 1)
    assert again.verdict == audit.verdict
    results = {**audit.results, "loss-threshold": other}
    beside = recount(type(audit)(run, audit.scenario, results, audit.utility, 1))
    assert other.verdict.kind == "leaks"
    assert beside.tried.deviations == ("seed is 1 and not 0",)
    assert beside.tried.different == 6
    assert beside.verdict.kind == "underpowered"
    card = export_public(run, tmp_path / "public").card
    (shown,) = card.audits.values()
    assert (shown.audits, shown.corrected_for, shown.planned) == (6, 1, True)
    assert card.commitments.plan is not None
    assert verify_card(tmp_path / "public", run).matches


def test_the_gate_says_whether_its_thresholds_are_as_planned(folder: Path) -> None:
    run = Run(folder / "mine")
    save_audit(Auditor(run).attack(shadows=0))
    result = gate(run, None, GateSettings(metrics=(), max_auroc=0.9))
    assert "; as planned)" in result.sentence
    assert result.to_dict()["deviations"] == []
    result = gate(run, None, GateSettings(metrics=(), max_auroc=0.95))
    assert "not as planned: max_auroc is 0.95 and not 0.9" in result.sentence


def test_what_goes_by_a_planned_name_is_not_what_was_planned(folder: Path) -> None:
    run = Run(folder / "mine")
    audit = Auditor(run).attack(find_scenario("server-reconstruct", 0), shadows=0)
    assert audit.tried.deviations == ("a scenario of one's own",)
    planned = read_plan(folder / "plan.json")
    own = ("attacks",)
    assert planned.deviations("server-reconstruct", ASKED, own) == (
        "attacks of one's own",
    )


def test_results_as_planned_count_where_they_are_more_than_the_plan_names(
    folder: Path,
) -> None:
    run, found = Run(folder / "mine"), scored(seed=3)
    for seed in (1, 2, 3):
        result = {"loss-threshold": scored(seed=seed)}
        log_audit(run, "server-reconstruct", 0, logged(result), ASKED)
    tried = count_tried(run, found.attack, found.auroc)
    assert (tried.made, tried.different, tried.deviations) == (3, 3, ())


def test_a_plan_that_was_altered_is_refused(folder: Path) -> None:
    text = (folder / "plan.json").read_text()
    for odd, says in (
        (text.replace('"shadows": 0', '"shadows": 50'), "altered since"),
        (text.replace('"plan": 1', '"plan": 2'), "is no plan"),
        ("[]", "is no plan"),
        ("{", "is no plan"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_plan(odd.encode(), "plan.json")
    said = json.loads(text)
    said["audits"] *= 2
    with pytest.raises(ConfigError, match="names a scenario twice"):
        parse_plan(json.dumps(said).encode(), "plan.json")
    (folder / "mine" / "plan.json").write_text(text.replace("0.9", "0.8"))
    with pytest.raises(TranscriptError, match=r"plan\.json is not the file"):
        Auditor(Run(folder / "mine")).attack(shadows=0)


@pytest.mark.parametrize(
    ("asked", "thresholds"),
    [
        (ASKED, {"nope": 1}),
        (ASKED, {"max_auroc": "high"}),
        ({"foo": 1}, {}),
        (ASKED | {"foo": 1}, {}),
        (ASKED | {"budget": 5}, {}),
        (ASKED | {"attacks": [3]}, {}),
        (ASKED | {"attacks": None}, {}),
    ],
)
def test_a_plan_that_somebody_else_made_up_is_refused_before_training(
    asked: dict[str, Any], thresholds: dict[str, Any], tmp_path: Path, cli: Cli
) -> None:
    with pytest.raises(ConfigError, match="is no plan"):
        make_plan({"server-reconstruct": asked}, thresholds)
    audits = [{"scenario": "server-reconstruct", "asked": asked}]
    said = {"plan": 1, "made": "now", "audits": audits, "thresholds": thresholds}
    text = json.dumps(said, sort_keys=True)
    place = tmp_path / "foreign.json"
    digest = hashlib.sha256(text.encode()).hexdigest()
    place.write_text(json.dumps({**said, "sha256": digest}))
    code, _, err = cli("train", "--seed", 0, *SMALL, "--name", "mine", "--plan", place)
    assert code == 2
    assert "foreign.json is no plan" in re.sub(r"\s+", " ", err)


def test_a_run_without_a_plan_has_none_to_carry_out(whole: Path, cli: Cli) -> None:
    code, _, err = cli("attack", "whole", "--planned")
    assert code == 2
    assert "whole was trained with no plan" in err


def test_a_run_is_trained_anew_with_its_own_plan_and_not_removed_for_a_bad_one(
    folder: Path, tmp_path: Path
) -> None:
    own = folder / "mine" / "plan.json"
    before, seal = own.read_bytes(), (folder / "mine" / "run.json").read_bytes()
    bad = tmp_path / "bad.json"
    for odd in ("no plan", "[]", "{}", '{"sha256": 5}', "[" * 9000):
        bad.write_text(odd)
        with pytest.raises(ConfigError, match=r"bad\.json"):
            train(
                folder=folder, name="mine", rounds=1, clients=3, epochs=1,
                fresh=True, plan=bad, seed=0
            )  # fmt: skip
    assert (folder / "mine" / "run.json").read_bytes() == seal
    run = train(
        folder=folder, name="mine", rounds=1, clients=3, epochs=1, fresh=True, plan=own, seed=0
    )  # fmt: skip
    assert run.is_complete
    assert run.read("plan.json") == before
