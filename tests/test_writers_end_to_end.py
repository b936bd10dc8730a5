"""Models that write, from training to their reports, on the embedded model."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Audit, Auditor, Run, train
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.parts.exposure import EXPOSURE
from privaudit.auditing.parts.one_run import BY_SECRET, ONE_RUN
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import TOKEN_LOSS, find_scenario, grid_cells
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.datasets import sources
from privaudit.datasets.scenes import records as scenes
from privaudit.report.export import export_public, verify_card
from privaudit.report.page import render_report
from privaudit.runs.ledger import Ledger
from tests.conftest import common_cache, train_and_stop

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {
    "clients": 2,
    "rounds": 2,
    "participation": 1.0,
    "tested": 12,
    "shots": 4,
    "public_share": 0.1,
    "measured_rounds": 1,
    "seed": 987654321,  # nothing else looks like it
}


@pytest.fixture(scope="module", autouse=True)
def fewer_scenes() -> Iterator[None]:
    """Draw a fifth of the scenes: each run reads and encodes all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenes, "RECORDS", 600)
        sources._load.cache_clear()
        yield
    sources._load.cache_clear()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("writers")
    learns: dict[str, Any] = {"epochs": 12, "learning_rate": 0.003, "folder": folder}
    learns |= {"settings": {"batch_size": 0, "optimizer": "adam"}, **SMALL}
    with common_cache(tmp_path_factory):
        return {
            "memorised": train("lora-fedavg", **learns),
            "secrets": train("lora-fedavg", canary="secret", canaries=12, **learns),
            "fedrand": train("fedrand", folder=folder, **SMALL),
            "untrained": train(
                "zero-shot",
                folder=folder,
                dataset="scenes",
                model="tiny-llava",
                **SMALL,
            ),
        }


@pytest.fixture(scope="module")
def audits(runs: dict[str, Run]) -> dict[str, Audit]:
    audited = ("memorised", "fedrand")
    return {name: Auditor(runs[name]).attack(shadows=0) for name in audited}


def test_what_was_memorised_leaks(audits: dict[str, Audit]) -> None:
    assert audits["memorised"].auroc.value > 0.9
    assert audits["memorised"].headline.attack == TOKEN_LOSS


def test_the_model_as_it_comes_does_not_leak(runs: dict[str, Run]) -> None:
    """By what carries the verdict: there are no moves for other attacks to see."""
    whole = find_scenario("server-reconstruct", 0)
    alone = {TOKEN_LOSS: whole.attacks[TOKEN_LOSS]}
    plan = replace(whole, attacks=alone, dominates=())
    leak = Auditor(runs["untrained"]).attack(plan).auroc
    assert leak.low < 0.5 < leak.high


def test_rebuilt_clients_leak_no_less_than_the_servers_model(
    audits: dict[str, Audit],
) -> None:
    audit = audits["memorised"]
    assert audit.auroc.value >= audit.part(SERVER_MODEL)[TOKEN_LOSS].auroc.value - 0.02
    assert {cell.attack for cell in grid_cells()} <= set(audit.part(SERVER_MODEL))


def test_a_rebuilt_client_is_nearer_to_its_own_than_to_others(
    audits: dict[str, Audit],
) -> None:
    close = audits["fedrand"].part(CLOSENESS).closeness
    assert close is not None
    assert close.distance.value < close.distance_null.value
    assert audits["memorised"].part(CLOSENESS).closeness is None  # it is read off


def test_planted_secrets_are_exposed_and_can_be_looked_at(runs: dict[str, Run]) -> None:
    run = runs["secrets"]
    entries = json.loads((run.path / "canaries.json").read_text())["canaries"]
    assert len(entries) == 2 * 12
    assert {one["client"] for one in entries} == {"client-0", "client-1"}
    assert all(one["answer"].startswith("the tag is ") for one in entries)
    audit = Auditor(run).attack("one-run")
    found, bound = audit.part(EXPOSURE), audit.part(ONE_RUN)
    assert found is not None
    assert bound is not None
    assert found.members.value > found.others.value
    assert bound.scored_by == BY_SECRET
    assert sum(bound.bound.n) == 2 * 12
    save_audit(audit)
    again = restore_audit(read_audit(run, "one-run"))
    assert again.part(EXPOSURE) == found
    assert EXPOSURE.title in render_report([audit])


def test_no_attack_reaches_the_truth(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ledger, "load", lambda path: pytest.fail("the truth was read"))
    plan = find_scenario("server-reconstruct", 0).for_task("generation")
    adversary, targets = Auditor(runs["fedrand"]).prepare(plan)
    for attack in plan.attacks.values():
        for scores in attack(adversary, targets[:1]):
            assert np.isfinite(scores.scores).all()


def test_utility_has_a_servers_and_the_clients_captions(
    audits: dict[str, Audit],
) -> None:
    utility = audits["fedrand"].measured_utility
    assert utility.metric == "ROUGE-L"
    assert set(utility.captions) == {"server", "clients"}
    assert utility.server is not None
    assert utility.gain is not None
    assert utility.gain.n == (12,)


def test_a_run_that_was_stopped_goes_on_to_the_same_transcript(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    """What a client kept, and whose factor was sent, survive."""
    train_and_stop(1, "fedrand", folder=tmp_path, **SMALL)
    resumed = train("fedrand", folder=tmp_path, name="cut", resume=True, **SMALL)
    ours, whole = resumed.header["progress"], runs["fedrand"].header["progress"]
    assert ours["head"] == whole["head"]
    assert resumed.own_model is not None
    whole_model = runs["fedrand"].own_model
    assert whole_model is not None
    for name, tensor in resumed.own_model.items():
        assert (tensor == whole_model[name]).all()


def test_no_word_of_a_record_leaves_and_the_card_matches(
    audits: dict[str, Audit], tmp_path: Path
) -> None:
    run = audits["fedrand"].run
    save_audit(audits["fedrand"])
    found = export_public(run, tmp_path / "out")
    text = "".join(path.read_text() for path in found.folder.iterdir())
    for dialogue in run.population.dataset.dialogues:
        for said in (dialogue.question, *dialogue.answers):
            assert said not in text
    assert str(SMALL["seed"]) not in text
    assert verify_card(found.folder, runs=run.path.parent).matches


def test_captions_on_the_page_are_coloured_by_the_rebuilt_models(
    audits: dict[str, Audit],
) -> None:
    shown = render_report([audits["fedrand"]], show_records=True)
    assert shown.count("Most exposed") == shown.count("Least exposed") == 6
    assert shown.count("data:image/png;base64,") == 12
    assert "nats" in shown
