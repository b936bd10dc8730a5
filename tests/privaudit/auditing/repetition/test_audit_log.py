"""Every audit of a run is counted, and the best of several counts as one of several."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, Run, gate
from privaudit.auditing.attack_result import (
    AttackResult,
    ClientScores,
    evaluate_scores,
)
from privaudit.auditing.audit import Audit
from privaudit.auditing.repetition.audit_log import (
    LOG,
    count_tried,
    log_audit,
    logged,
    read_log,
)
from privaudit.auditing.repetition.correction import recount
from privaudit.auditing.storage.save import save_audit
from privaudit.checks.gate.settings import GateSettings
from privaudit.cli.attacking import recounted, report_page
from privaudit.core.errors import LimitError, MissingFileError, TranscriptError
from privaudit.evaluation.card import read_card
from privaudit.report.export import export_public
from privaudit.report.export.verify import verify_card
from privaudit.report.page import render_report
from privaudit.statistics.roc import auroc
from privaudit.statistics.verdict import judge_leak
from tests.conftest import Cli


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


def test_the_best_of_five_audits_that_find_nothing_leaks_no_more_often_than_one() -> (
    None
):
    """Each of 400 runs is audited five times, and the best is reported."""
    rng = np.random.default_rng(0)
    chosen = [
        max(
            (auroc(*rng.normal(size=(2, 60))) for _ in range(5)),
            key=attrgetter("value"),
        )
        for _ in range(400)
    ]

    def leaks(tried: int) -> float:
        kinds = [judge_leak(one, tried=tried).kind for one in chosen]
        return kinds.count("leaks") / len(kinds)

    assert leaks(1) > 0.08  # 1 - 0.975^5 is 11.9 %
    assert leaks(5) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 400)


def test_an_audit_is_in_the_log_and_the_same_again_counts_once(whole: Path) -> None:
    run = Run(whole)
    auditor = Auditor(run)
    first = auditor.attack(shadows=0)
    again = auditor.attack(shadows=0, seed=1)
    assert (again.tried.made, again.tried.different) == (2, 1)
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
    run = Run(whole)
    audit = save_and_read(run)
    return replace(audit, results={"loss-threshold": scored(200, 1, 0.15)})


def save_and_read(run: Run) -> Audit:
    audit = Auditor(run).attack(shadows=0)
    save_audit(audit)
    return audit


def test_report_gate_and_card_say_how_many_were_tried_and_correct_for_them(
    audited: Audit, tmp_path: Path, cli: Cli
) -> None:
    run = audited.run
    log(run, audited.headline)
    before = recount(audited)
    assert before.tried.different == 2  # that which was made, and this
    for seed in range(6):
        log(run, scored(seed=seed + 10), seed)
    after = recount(audited)
    assert after.tried.different == 8
    assert audited.verdict.kind == "leaks"
    assert after.verdict.kind == "underpowered"
    assert "corrected for 8 audits of the run" in after.verdict.sentence
    assert "8 different results" in render_report([after])
    result = gate(run, None, replace_limit(0.9))
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
    found = verify_card(card, run)
    assert found.mismatches == ()
    code, printed, _ = cli("gate", "whole", "--max-auroc", 0.9)
    assert code in (0, 3)
    assert "one of 9 audits" in re.sub(r"\s+", " ", printed)


def replace_limit(limit: float) -> GateSettings:
    return GateSettings(metrics=(), max_auroc=limit)


def test_a_card_that_names_fewer_audits_than_there_were_is_untrue(
    audited: Audit, tmp_path: Path
) -> None:
    log(audited.run, scored(seed=1))
    card = export_public(audited.run, tmp_path / "public").folder / "card.json"
    said, _ = read_card(card)
    (shown,) = said.audits.values()
    assert shown.audits == 2
    forged = shown.model_copy(update={"audits": 1})
    one = said.model_copy(update={"audits": {"server-reconstruct": forged}})
    card.write_text(one.render())
    found = verify_card(card, audited.run)
    assert any("corrected_for" in one.place for one in found.mismatches)


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
    assert recounted(audit, show_records=False).tried.different == 1
    page = report_page(run.path, audit.scenario.name)
    assert not page.exists()
    log(run, scored())
    page.parent.mkdir(parents=True)
    assert recounted(audit, show_records=False).tried.different == 2
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
    tried = count_tried(run, found.attack, shifted)
    assert (tried.made, tried.different) == (1, 1)
