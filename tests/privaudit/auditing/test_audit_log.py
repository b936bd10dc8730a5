"""Every audit of a run is counted, and the best of several counts as one of several.

What was planned before training is held against what is audited.
"""

import hashlib
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run, gate, train
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit, recount
from privaudit.auditing.audit_log import (
    LOG,
    log_audit,
    logged,
    make_plan,
    parse_plan,
    read_log,
    read_plan,
    tally_of,
)
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.stored_audit import save_audit
from privaudit.checks.gate.settings import GateSettings
from privaudit.cli.commands.attack import recounted, report_page
from privaudit.core.errors import (
    ConfigError,
    LimitError,
    MissingFileError,
    TranscriptError,
)
from privaudit.evaluation.card import read_card
from privaudit.report.export import export_public
from privaudit.report.export.verify import verify_card
from privaudit.report.page import render_report
from privaudit.statistics.roc import auroc
from privaudit.statistics.verdict import judge_leak
from tests.altered_cards import alter_card
from tests.conftest import Cli, common_cache, refused


def scored(members: int = 200, seed: int = 0, shift: float = 0.0) -> AttackResult:
    """Return what an attack gave whose scores differ by so many deviations."""
    rng = np.random.default_rng(seed)
    truth = np.arange(2 * members) < members
    scores = rng.normal(size=2 * members) + shift * truth
    rows = np.arange(2 * members)
    one = ClientScores("client-0", rows, 0 * rows, scores, scores > 0, truth)
    return evaluate_scores("loss-threshold", "", "", [one])


def log(run: Run, result: AttackResult, seed: int = 0) -> None:
    log_audit(run, "server-reconstruct", seed, logged({result.attack: result}))


def share_above(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float((ours[:, None] > theirs).mean())


def test_the_best_of_five_audits_that_find_nothing_leaks_no_more_often_than_one() -> (
    None
):
    """Each of 400 runs is audited five times, and the best is reported."""
    rng = np.random.default_rng(0)
    chosen = [
        auroc(*max(rng.normal(size=(5, 2, 60)), key=lambda one: share_above(*one)))
        for _ in range(400)
    ]

    def leaks(audits: int) -> float:
        kinds = [judge_leak(one, audits=audits).kind for one in chosen]
        return kinds.count("leaks") / len(kinds)

    assert leaks(1) > 0.08  # 1 - 0.975^5 is 11.9 %
    assert leaks(5) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 400)


def test_an_audit_is_in_the_log_and_the_same_again_counts_once(whole: Path) -> None:
    run = Run(whole)
    auditor = Auditor(run)
    first = auditor.attack(shadows=0)
    again = auditor.attack(shadows=0, seed=1)
    assert (again.tally.made, again.tally.different) == (2, 1)
    assert again.verdict == first.verdict
    found, _ = read_log(run)
    headline, *others = found.attacks
    assert (found.scenario, found.seed) == ("server-reconstruct", 0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\+00:00", found.time)
    assert headline.attack == first.headline.attack
    assert headline.settings == first.headline.settings
    assert (headline.n, headline.auroc) == (first.auroc.n, first.auroc.value)
    assert headline.named
    assert others
    assert not any(one.named for one in others)


@pytest.fixture
def audited(whole: Path) -> Audit:
    """An audit whose headline leaks by itself, by little."""
    audit = Auditor(Run(whole)).attack(shadows=0)
    save_audit(audit)
    return replace(audit, results={"loss-threshold": scored(200, 1, 0.15)})


def test_report_gate_and_card_say_how_many_were_tried_and_correct_for_them(
    audited: Audit, tmp_path: Path, cli: Cli
) -> None:
    run = audited.run
    log(run, audited.headline)
    before = recount(audited)
    assert before.tally.different == 2  # that which was made, and this
    for seed in range(6):
        log(run, scored(seed=seed + 10), seed)
    after = recount(audited)
    assert after.tally.different == 8
    assert audited.verdict.kind == "leaks"
    assert after.verdict.kind == "underpowered"
    assert "corrected for 8 audits of the run" in after.verdict.sentence
    text = render_report([after])
    assert "8 different results" in text
    assert "folder holds its last audit: copy it to keep one" in text
    result = gate(run, None, GateSettings(metrics=(), max_auroc=0.9))
    assert result.alpha == 0.05 / 8
    assert "one of 8 audits of the run" in result.sentence
    confidence = [check.estimate.confidence for check in result.tested]
    assert confidence == [1 - 0.05 / 8] * len(confidence)
    card = tmp_path / "public"
    shown = export_public(run, card).card.audits["server-reconstruct"]
    assert (shown.audits, shown.corrected_for) == (8, 8)
    assert shown.auroc is not None
    assert shown.auroc.confidence == 1 - 0.05 / 8
    log(run, scored(seed=99))  # later than the card
    assert verify_card(card, run).mismatches == ()
    code, printed, _ = cli("gate", "whole", "--max-auroc", 0.9)
    assert code in (0, 3)
    assert "one of 9 audits" in re.sub(r"\s+", " ", printed)


def test_a_card_that_names_fewer_audits_than_there_were_is_untrue(
    audited: Audit, tmp_path: Path
) -> None:
    log(audited.run, scored(seed=1))
    card = export_public(audited.run, tmp_path / "public").folder / "card.json"
    said = read_card(card).card
    (shown,) = said.audits.values()
    assert shown.audits == 2
    forged = shown.model_copy(update={"audits": 1})
    one = said.model_copy(update={"audits": {"server-reconstruct": forged}})
    alter_card(card, lambda said: said.update(one.plain()))
    found = verify_card(card, audited.run)
    assert any("corrected_for" in one.entry for one in found.mismatches)


def test_several_at_once_lose_no_line(whole: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: log(Run(whole), scored(seed=seed), seed), range(8)))
    assert sorted(one.seed for one in read_log(Run(whole))) == list(range(8))


def test_a_log_that_was_cut_or_altered_is_an_error(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        log(Run(whole), scored(seed=seed), seed)
    file = whole / LOG
    content = file.read_bytes()
    first, *rest = content.splitlines(keepends=True)
    for damaged in (
        b"",
        first,
        b"".join(rest),
        content.replace(b'"seed":1', b'"seed":7'),
    ):
        file.write_bytes(damaged)
        with pytest.raises(TranscriptError, match="cut or altered"):
            read_log(Run(whole))
        with pytest.raises(TranscriptError, match="cut or altered"):
            log(Run(whole), scored())
    file.unlink()
    with pytest.raises(MissingFileError, match=r"log\.jsonl"):
        read_log(Run(whole))
    file.write_bytes(content + b'{"what a killed process wrote')
    assert len(read_log(Run(whole))) == 3
    log(Run(whole), scored(), 3)
    assert [one.seed for one in read_log(Run(whole))] == [0, 1, 2, 3]
    monkeypatch.setenv("PRIVAUDIT_MAX_LINES", "100")
    with pytest.raises(LimitError, match="PRIVAUDIT_MAX_LINES"):
        read_log(Run(whole))


def test_a_page_is_written_again_where_more_audits_were_made(whole: Path) -> None:
    """As for the first of several scenarios that one command names."""
    run = Run(whole)
    audit = Auditor(run).attack(shadows=0)
    assert recounted(audit, show_records=False).tally.different == 1
    page = report_page(run.path, audit.scenario.name)
    assert not page.exists()
    log(run, scored())
    page.parent.mkdir(parents=True)
    assert recounted(audit, show_records=False).tally.different == 2
    assert "2 different results" in page.read_text()


def test_a_log_that_is_gone_is_an_error_before_anything_is_trained(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(Run(whole), scored())
    (whole / LOG).unlink()

    def play(*_: object, **__: object) -> None:
        pytest.fail("an audit was made that cannot be noted")

    monkeypatch.setattr(Auditor, "_play", play)
    with pytest.raises(MissingFileError, match="restore it from a copy, or train anew"):
        Auditor(Run(whole)).attack(shadows=0)


def test_a_header_that_is_older_than_the_log_drops_no_line(whole: Path) -> None:
    header = whole / "run.json"
    before = header.read_bytes()
    (whole / "audits").mkdir(exist_ok=True)
    (whole / LOG).write_text("{}\n")  # as a kill leaves it
    assert read_log(Run(whole)) == []
    log(Run(whole), scored())
    after_one = header.read_bytes()
    for seed in (1, 2):
        log(Run(whole), scored(seed=seed), seed)
    content = (whole / LOG).read_bytes()
    for older, says in ((before, "lists 0 of them"), (after_one, "lists 1 of them")):
        header.write_bytes(older)
        with pytest.raises(TranscriptError, match=says):
            read_log(Run(whole))
        with pytest.raises(TranscriptError, match=says):
            log(Run(whole), scored(seed=9), 9)
        assert (whole / LOG).read_bytes() == content


def test_the_last_bits_of_an_auroc_make_no_other_audit(whole: Path) -> None:
    run, found = Run(whole), scored()
    log(run, found)
    shifted = replace(found.auroc, value=found.auroc.value + 1e-12)
    tally = tally_of(run, found.attack, shifted)
    assert (tally.made, tally.different) == (1, 1)


ASKED = {"attacks": [], "clients": "all", "shadows": 0, "budget": None, "seed": 0}
SMALL = ("--rounds", 1, "--clients", 3, "--set", "epochs=1")
MINE: dict[str, Any] = {
    "name": "mine",
    "rounds": 1,
    "clients": 3,
    "epochs": 1,
    "seed": 0,
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plan, and a run that was trained with it."""
    from privaudit.auditing.audit_log import write_plan

    folder = tmp_path_factory.mktemp("planned")
    planned = make_plan({"server-reconstruct": ASKED}, {"max_auroc": 0.9})
    write_plan(planned, folder / "plan.json")
    with common_cache(tmp_path_factory):
        train(folder=folder, plan=folder / "plan.json", **MINE)
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
    assert "made once" in refused(cli, "plan", place, *words)
    assert "another plan" in refused(
        cli, "train", "--seed", 0, *SMALL, "--name", "mine", "--plan", place
    )
    code, printed, err = cli("attack", "mine", "--planned")
    assert code == 0, err
    assert "As planned before training" in re.sub(r"\s+", " ", printed)
    assert [one.as_planned for one in read_log(Run(folder / "mine"))] == [True]
    assert "--planned was given, and options" in refused(
        cli, "attack", "mine", "--planned", "--seed", 3
    )


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
        result = logged({"loss-threshold": found})
        log_audit(run, "server-reconstruct", seed, result, asked)
    again = recount(audit)
    assert (again.tally.made, again.tally.different) == (6, 1)
    assert again.verdict == audit.verdict
    results = {**audit.results, "loss-threshold": other}
    beside = recount(type(audit)(run, audit.scenario, results, audit.utility, 1))
    assert other.verdict.kind == "leaks"
    assert beside.tally.deviations == ("seed is 1 and not 0",)
    assert beside.tally.different == 6
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
    assert audit.tally.deviations == ("a scenario of one's own",)
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
    tally = tally_of(run, found.attack, found.auroc)
    assert (tally.made, tally.different, tally.deviations) == (3, 3, ())


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
    assert "foreign.json is no plan" in re.sub(
        r"\s+",
        " ",
        refused(cli, "train", "--seed", 0, *SMALL, "--name", "mine", "--plan", place),
    )


def test_a_run_without_a_plan_has_none_to_carry_out(whole: Path, cli: Cli) -> None:
    assert "whole was trained with no plan" in refused(
        cli, "attack", "whole", "--planned"
    )


def test_a_run_is_trained_anew_with_its_own_plan_and_not_removed_for_a_bad_one(
    folder: Path, tmp_path: Path
) -> None:
    own = folder / "mine" / "plan.json"
    before, seal = own.read_bytes(), (folder / "mine" / "run.json").read_bytes()
    bad = tmp_path / "bad.json"
    for odd in ("no plan", "[]", "{}", '{"sha256": 5}', "[" * 9000):
        bad.write_text(odd)
        with pytest.raises(ConfigError, match=r"bad\.json"):
            train(folder=folder, fresh=True, plan=bad, **MINE)
    assert (folder / "mine" / "run.json").read_bytes() == seal
    run = train(folder=folder, fresh=True, plan=own, **MINE)
    assert run.is_complete
    assert run.read("plan.json") == before
