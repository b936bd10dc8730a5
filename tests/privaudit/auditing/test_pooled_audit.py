"""Pooled trainings: what is one audit, what is refused, and what is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, train
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_log import log_audit, logged, tally_of
from privaudit.auditing.parts.pool import POOL
from privaudit.auditing.pooled_audit import pool_audits, pool_name, refuse_pool
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import ConfigError, IncompatibleRunsError, TranscriptError
from privaudit.core.storage import read_json
from privaudit.report.export.export import export_public
from privaudit.runs.run import Run, load_run
from privaudit.runs.training import train_another

SMALL: dict[str, Any] = {"rounds": 1, "clients": 2, "test_share": 0.45}
Trainings = list[Run]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    """Three trainings that nobody attacked."""
    first = train("zero-shot", folder=tmp_path_factory.mktemp("runs"), seed=3, **SMALL)
    return [first, train_another(first, 1), train_another(first, 2)]


PLAYED: dict[str, Audit] = {}


def made(run: Run, by: float = 0.0, *, is_pooled: str = "") -> Audit:
    """Return an audit in which members score so much higher, as its log has it."""
    rng = np.random.default_rng(run.config.seed)
    truth, clients = run.truth, []
    for name in truth.clients:
        records = truth.candidates_of(name)
        is_member = truth.is_member[records]
        scores = rng.normal(size=len(records)) + by * is_member
        labels = 0 * records
        guesses = scores > 0
        clients.append(ClientScores(name, records, labels, scores, guesses, is_member))
    audit = PLAYED.get("audit") or Auditor(run).attack(
        "black-box", shadows=0, is_logged=False
    )
    PLAYED["audit"] = audit
    result = evaluate_scores("loss", "", "", clients)
    audit = replace(audit, run=run, results={"loss": result})
    name = pool_name([run]) if is_pooled == "alone" else is_pooled
    log_audit(run, audit.scenario.name, 0, logged(audit.results), {}, (), name)
    return audit


def test_a_leak_that_one_training_leaves_open_is_decided_by_three(
    trainings: Trainings, tmp_path: Path
) -> None:
    name = pool_name(trainings)
    audits = [made(run, 0.25, is_pooled=name) for run in trainings]
    pooled = pool_audits(audits, seconds=2.0)
    verdict, part = pooled.verdict, pooled.part(POOL)
    assert verdict.audits == 1
    assert verdict.kind == "leaks"
    assert sum(verdict.auroc.n) == sum(sum(a.auroc.n) for a in audits)
    assert part is not None
    assert part.method.low <= verdict.auroc.low
    assert part.method.high >= verdict.auroc.high
    save_audit(pooled, tmp_path / "pool")
    kept = restore_audit(read_audit(load_run(tmp_path / "pool"), "scores"))
    assert kept.verdict == verdict
    assert kept.part(POOL) == part
    assert kept.scenario.threat == "released"


def test_a_pool_of_runs_that_were_audited_alone_has_half_of_the_error(
    tmp_path: Path,
) -> None:
    first = train("zero-shot", folder=tmp_path, seed=7, **SMALL)
    runs = [first, train_another(first, 1)]
    name = pool_name(runs)
    alone = made(runs[0])
    audits = [made(run, is_pooled=name) for run in runs]
    assert pool_audits(audits).verdict.audits == 2
    assert tally_of(runs[0], "loss", alone.auroc).different == 2


def test_looks_have_a_quarter_of_the_error_and_begin_with_one(tmp_path: Path) -> None:
    run = train("zero-shot", folder=tmp_path, seed=7, **SMALL)
    name = pool_name([run], is_sequential=True)
    pooled = pool_audits([made(run, is_pooled=name)], looks=name)
    assert pooled.verdict.share == 4
    assert "6 looks" in pooled.verdict.sentence


def test_looks_at_other_trainings_are_another_audit(trainings: Trainings) -> None:
    """Or else whoever sees that one training leaves it open could pick the next."""
    first, second, third = trainings
    names = [
        pool_name(runs, is_sequential=True)
        for runs in ([first], [first, second], [first, third])
    ]
    assert len(set(names)) == 3
    with pytest.raises(
        ConfigError, match="7 trainings was asked for, and it takes 1 to 6"
    ):
        next(Auditor([first] * 7).looks("black-box"))


def test_few_coins_may_agree_by_chance(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in trainings[:2]:
        own = run.truth
        few = np.flatnonzero(own.owner >= 0)[:12]
        owner = np.full_like(own.owner, -1)
        owner[few] = 0
        is_member = np.zeros_like(own.is_member)
        is_member[few[::2]] = True
        monkeypatch.setitem(
            vars(run), "truth", replace(own, owner=owner, is_member=is_member)
        )
    refuse_pool(trainings[:2])


def test_what_would_decide_counts_further_trainings(trainings: Trainings) -> None:
    name = pool_name(trainings)
    verdict = pool_audits([made(run, is_pooled=name) for run in trainings]).verdict
    if verdict.trainings is not None:  # by these seeds it is open
        assert verdict.trainings > len(trainings)
        assert f"about {verdict.trainings - 3} more training" in verdict.sentence
    assert verdict.kind in ("underpowered", "no evidence")


def test_runs_that_share_coins_or_settings_that_differ_are_refused(
    trainings: Trainings, tmp_path: Path
) -> None:
    with pytest.raises(IncompatibleRunsError, match="follow from the seed 3 in both"):
        refuse_pool([trainings[0], trainings[0]])
    other = train("zero-shot", folder=tmp_path, seed=4, **{**SMALL, "rounds": 2})
    with pytest.raises(IncompatibleRunsError, match="rounds is"):
        refuse_pool([trainings[0], other])
    fresh = train("zero-shot", folder=tmp_path, **SMALL)
    same = train("zero-shot", folder=tmp_path, name="same", coins=fresh, **SMALL)
    with pytest.raises(IncompatibleRunsError, match=r"correlation of 1\.00"):
        refuse_pool([fresh, same])


def test_one_training_is_no_pool_and_scores_belong_to_none(
    trainings: Trainings, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="2 to 100"):
        Auditor(trainings[0]).pool("black-box")  # before anything is attacked
    save_audit(Auditor.from_scores([1.0, 2.0], [0.0, 3.0]), tmp_path / "scores")
    with pytest.raises(ConfigError, match="one table"):
        refuse_pool([load_run(tmp_path / "scores"), trainings[0]])


def test_an_auditor_of_several_runs_pools_them(trainings: Trainings) -> None:
    audit = Auditor(trainings).attack("black-box", shadows=0)
    assert len(audit.part(POOL).runs) == 3  # type: ignore[union-attr]
    assert audit.verdict.pooled.trainings == 3


def test_further_trainings_are_fresh_and_come_again(trainings: Trainings) -> None:
    again = train_another(trainings[0], 2)
    assert again.path == trainings[2].path
    truth = [run.truth.is_member for run in trainings]
    assert not np.array_equal(truth[0], truth[1])
    assert len({run.header["data_hash"] for run in trainings}) == 1


def test_a_pool_whose_verdict_was_changed_is_refused(
    trainings: Trainings, tmp_path: Path
) -> None:
    name = pool_name(trainings)
    save_audit(
        pool_audits([made(r, 0.25, is_pooled=name) for r in trainings]), tmp_path / "p"
    )
    run = load_run(tmp_path / "p")
    stored = read_audit(run, "scores")
    changed = read_json(run.path / "audits/scores/audit.json")
    changed["attack_results"]["loss"]["verdict"]["pooled"]["is_sequential"] = True
    changed["attack_results"]["loss"]["verdict"]["audits"] = 50
    with pytest.raises(TranscriptError):
        restore_audit(replace(stored, contents=changed))


def test_no_card_hides_several_coins_of_a_record(
    trainings: Trainings, tmp_path: Path
) -> None:
    name = pool_name(trainings)
    pooled = pool_audits([made(run, is_pooled=name) for run in trainings])
    save_audit(pooled, tmp_path / "p")
    with pytest.raises(ConfigError, match="hides one coin"):
        export_public(load_run(tmp_path / "p"), tmp_path / "card")
