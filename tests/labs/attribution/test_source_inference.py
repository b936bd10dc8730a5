"""Uploads name who learned a record, and nobody where its class alone tells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privaudit import Audit, Auditor, load_run
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.auditing.stored_audit import restore_audit
from privaudit.federation.trainer import Task
from privaudit.recording.owner import use_owner
from privaudit.report.page import render_report
from privaudit.runs.ledger import Coin
from privaudit.statistics.estimate import proportion, two_proportions
from privaudit.statistics.verdict import UNKNOWN_SAMPLING
from privaudit_labs.attribution.source_inference import (
    SOURCE_INFERENCE,
    SourceInference,
    infer_sources,
    sentences,
)
from tests.conftest import toy_records
from tests.privaudit.auditing.parts.test_leakage_by_round import (
    TRAINER,
    Watched,
    elsewhere,
    learned,
    watch,
)
from tests.privaudit.auditing.test_played_scenario import NAME, played
from tests.privaudit.auditing.test_stored_audit import stored
from tests.privaudit.made_audits import make_watched
from tests.privaudit.recording.small_federation import Linear, record, toss
from tests.privaudit.report.test_page import printed_words, words
from tests.toy_federation import Play

__all__ = ["elsewhere", "learned", "played"]  # fixtures


def test_uploads_name_the_client_that_learned_a_record(task: Task, play: Play) -> None:
    """Eight clients with eight records each, which they memorise."""
    clients = {f"client-{number}": 16 for number in range(8)}
    found = infer_sources(
        *watch(replace(task, candidates=clients), play, learned=True, count=16)
    )
    assert found is not None
    assert found.chance == pytest.approx(1 / 8)
    assert found.beyond.low > 0
    assert found.kind == "leaks"
    assert found.members.value - found.others.value == found.beyond.value


def test_uploads_name_nobody_where_nobody_learned_it(elsewhere: Watched) -> None:
    found = infer_sources(*elsewhere)
    assert found is not None
    assert found.beyond.low <= 0 <= found.beyond.high
    assert found.kind == "no evidence"


def test_a_class_that_one_client_holds_is_no_evidence(task: Task, play: Play) -> None:
    """Each client has classes of its own, learned well: others' records fit as well."""
    truth, shards, candidates = {}, {}, {}
    for number, client in enumerate(task.clients):
        every = toy_records(240, 30 + number)
        mine = every.pick(every.labels == number)
        truth[client] = np.random.default_rng(number).random(len(mine)) < 0.5
        candidates[client] = mine
        shards[client] = toy_records(240, 90 + number)
        shards[client] = shards[client].pick(shards[client].labels == number)
    watched = play(TRAINER, shards=shards).watched(candidates=candidates)
    found = infer_sources(*watched, truth)
    assert found is not None
    assert found.beyond.low <= 0 <= found.beyond.high


def test_one_client_alone_has_no_source_to_infer(learned: Watched) -> None:
    adversary, targets, truth = learned
    assert infer_sources(adversary, targets[:1], truth) is None


def test_groups_of_records_count_once(
    played: tuple[PlayedScenario, PlayedScenario],
) -> None:
    found = SOURCE_INFERENCE.compute(played[1])
    after = played[1].attack(played[1].scenario, played[1].targets)[NAME]
    assert found is not None
    counted = sum(len(client.records) for client in after.clients)
    assert sum(found.members.n) + sum(found.others.n) == counted


@pytest.fixture
def asked() -> Audit:
    """An audit of a run that never was."""
    source = SourceInference(
        proportion(60, 200),
        proportion(40, 200),
        two_proportions(60, 200, 40, 200),
        0.2,
        "leaks",
    )
    audit = make_watched()
    return replace(audit, parts={**audit.parts, SOURCE_INFERENCE.name: source})


def test_source_inference_is_reported_with_its_numbers(asked: Audit) -> None:
    found = asked.part(SOURCE_INFERENCE)
    assert found is not None
    (sentence,) = sentences(found, "coin")
    assert sentence in printed_words(asked)
    assert sentence[1:] in words(render_report([asked]))
    assert "for 30.0 % [23.7, 36.9] of 200 members" in sentence
    assert "for 20.0 % [14.7, 26.2] of 200 candidates that no client" in sentence
    assert "(by chance 20.0 %)" in sentence
    assert "Training adds +0.100 [" in sentence
    assert sentence.endswith("beyond what its class tells.")


def test_without_a_coin_no_leak_is_said(tmp_path: Path) -> None:
    record(tmp_path / "run", replace(toss(), coin=Coin("none")), Linear())
    run = load_run(tmp_path / "run")
    with use_owner(Linear()):
        audit = Auditor(run).attack("update-watch", shadows=0)
    found = audit.part(SOURCE_INFERENCE)
    assert found is not None
    (said,) = sentences(found, run.sampling)
    assert "Training adds" not in said
    assert said.endswith(f": no verdict. {UNKNOWN_SAMPLING}")


def test_what_was_saved_comes_back_whole(asked: Audit, tmp_path: Path) -> None:
    assert restore_audit(stored(asked, tmp_path)).to_dict() == asked.to_dict()
