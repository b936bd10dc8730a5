"""Audits on disk: written, read back, and refused where they were damaged."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import Auditor, Run
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import find_plan
from privaudit.auditing.stored_audit import (
    CLASS_NAMES,
    StoredAudit,
    restore_audit,
    save_audit,
)
from privaudit.core.errors import TranscriptError
from privaudit.report.export.verify import leaves
from privaudit.report.page import render_report
from privaudit.statistics.roc import pooled_auroc
from privaudit.statistics.verdict import as_tested
from tests.privaudit.made_audits import (
    make_audit,
    make_claimed,
    make_watched,
    make_writer,
)

Change = Callable[[dict[str, Any]], object]


def stored(audit: Audit, folder: Path, change: Change | None = None) -> StoredAudit:
    """Return an audit as it is read back, without a run on disk to check it by."""
    place = save_audit(audit, folder)
    contents = json.loads((place / "audit.json").read_text())
    if change is not None:
        change(contents)
    with np.load(io.BytesIO((place / "scores.npz").read_bytes())) as arrays:
        found = dict(arrays)
    names = tuple(map(str, found.pop(CLASS_NAMES)))
    columns: dict[str, dict[str, np.ndarray]] = {}
    for key, values in found.items():
        attack, _, column = key.rpartition("/")
        columns.setdefault(attack, {})[column] = values
    scenario = audit.scenario.name
    return StoredAudit(audit.run, scenario, tuple(columns), columns, contents, names)


@pytest.mark.parametrize("make", [make_audit, make_watched, make_claimed, make_writer])
def test_what_was_saved_comes_back_whole(
    make: Callable[[], Audit], tmp_path: Path
) -> None:
    audit = make()
    assert restore_audit(stored(audit, tmp_path)).to_dict() == audit.to_dict()


def test_the_page_is_the_same_to_the_byte(tmp_path: Path) -> None:
    audit = make_writer()
    kept = stored(audit, tmp_path)
    again = render_report([restore_audit(kept)], class_names=[kept.class_names])
    assert again == render_report([audit])


def test_a_scenario_of_ones_own_needs_no_registration(tmp_path: Path) -> None:
    audit = make_audit()
    audit = replace(audit, scenario=replace(audit.scenario, name="my-own"))
    again = restore_audit(stored(audit, tmp_path))
    assert (again.scenario.name, again.scenario.threat) == ("my-own", "server")
    assert again.scenario.question == audit.scenario.question


def verdict_of(contents: dict[str, Any]) -> Any:
    return contents["attack_results"]["shadow"]["verdict"]


def membership_of(contents: dict[str, Any]) -> Any:
    return verdict_of(contents)["evidence"]["test"]


def test_the_verdict_on_a_claim_is_what_its_numbers_give(tmp_path: Path) -> None:
    def refute(contents: dict[str, Any]) -> None:
        contents["one_run"]["verdict"]["kind"] = "REFUTED"

    with pytest.raises(TranscriptError, match="by its numbers it is UNDER"):
        restore_audit(stored(make_claimed(0.77), tmp_path, refute))


@pytest.mark.parametrize("make", [make_audit, make_watched, make_claimed])
def test_audits_hold_no_sentence(make: Callable[[], Audit], tmp_path: Path) -> None:
    audit = replace(make(), scenario=find_plan("server-reconstruct"))
    contents = json.loads((save_audit(audit, tmp_path) / "audit.json").read_text())
    texts = [text for text in leaves(contents).values() if isinstance(text, str)]
    assert not [text for text in texts if text.endswith((".", "?", "!"))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.pop("rounds"), "'rounds'"),
        (lambda c: c["utility"]["local"].pop("n"), "fields"),
        (lambda c: c["utility"].update(local=3), "TypeError|TypeCheckError"),
        (lambda c: c["rebuilt"].update(closeness=3), "take closeness = 3: Input shou"),
        (
            lambda c: c["attack_results"]["shadow"]["auroc"].update(high=0.99),
            "its scores give",
        ),
        (lambda c: c["attack_results"]["shadow"].pop("settings"), "'settings'"),
        (lambda c: verdict_of(c).update(kind="reversed"), "its numbers give 'leaks'"),
        (
            lambda c: verdict_of(c).update(audits=True),
            "take audits = True: Input should be a valid integer",
        ),
        (lambda c: verdict_of(c).update(margin=2.0), "A margin of 2.0 is not between"),
        (lambda c: membership_of(c).update(either=0.5), "numbers give 'underpow"),
        (lambda c: membership_of(c).update(tail=0.9), "is not what its sco"),
        (lambda c: verdict_of(c)["evidence"].update(test=None), "is not what its sco"),
        (
            lambda c: verdict_of(c)["evidence"].update(called=0),
            "is not what its scores",
        ),
        (lambda c: membership_of(c).pop("top"), "evidence.test.top"),
    ],
)
def test_damage_says_what_to_do(change: Change, says: str, tmp_path: Path) -> None:
    audit = make_audit(first=0)
    with pytest.raises(TranscriptError, match=says) as found:
        restore_audit(stored(audit, tmp_path, change))
    assert f"`privaudit attack {audit.run.name}" in str(found.value)
    assert "\n" not in str(found.value)


def test_scores_give_the_auroc_again(tmp_path: Path) -> None:
    audit = make_audit()
    with np.load(save_audit(audit, tmp_path) / "scores.npz", allow_pickle=False) as z:
        arrays = dict(z)
    assert list(arrays.pop("class names")) == ["zero", "one", "two"]
    assert len(arrays) == 2 * 6
    scores, truth = arrays["shadow/scores"], arrays["shadow/is_member"]
    owns = [arrays["shadow/client"] == c.client for c in audit.headline.clients]
    groups = [(scores[own & truth], scores[own & ~truth]) for own in owns]
    test = audit.headline.verdict.test
    assert test is not None
    assert as_tested(pooled_auroc(groups, is_tested=True), test) == audit.auroc
    assert len(arrays["shadow/labels"]) == len(arrays["shadow/guesses"]) == 360


def test_folders_are_private_and_hold_nothing_else(tmp_path: Path) -> None:
    place = save_audit(make_audit(), tmp_path)
    assert place == tmp_path / "audits" / "server-reconstruct"
    assert {entry.name for entry in place.iterdir()} == {"audit.json", "scores.npz"}
    for folder in (place, place.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_run_folder_is_the_default_and_lists_the_audit(whole: Path) -> None:
    place = save_audit(Auditor(Run(whole)).attack(clients=1, shadows=0))
    assert place == whole / "audits" / "server-reconstruct"
    listed = {name for name in Run(whole).files if name.startswith("audits/")}
    names = ("audit.json", "scores.npz")
    assert listed == {
        "audits/log.jsonl",
        *(f"audits/server-reconstruct/{name}" for name in names),
    }


def test_scores_on_the_servers_model_are_kept_too(tmp_path: Path) -> None:
    audit = make_writer()
    with np.load(save_audit(audit, tmp_path) / "scores.npz", allow_pickle=False) as z:
        scores = z["server model/max-renyi/scores"]
    common = audit.part(SERVER_MODEL)["max-renyi"].clients
    assert np.array_equal(scores, np.concatenate([c.scores for c in common]))
