"""What linked models add to the average, by truth that no attack has seen."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.auditing.attack import Target
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.stored_audit import restore_audit, save_audit
from privaudit.federation.trainer import Task
from privaudit.report.page import render_report
from privaudit.report.tables.table import print_table
from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate, proportion
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.attribution.linkage_gain import (
    LINKAGE_GAIN,
    LinkageGain,
    measure_linkage_gain,
    sentences,
    without_suspects,
)
from tests.privaudit.auditing.test_linkage import CANDIDATES, Looked, look, memory
from tests.privaudit.auditing.test_stored_audit import stored
from tests.privaudit.made_audits import make_audit
from tests.scenarios.test_curious_peer import audited_peers


def leak_of(looked: Looked, targets: Sequence[Target]) -> dict[str, AttackResult]:
    scores = LossThreshold()(looked.adversary, targets)
    clients = [
        ClientScores(
            target.client,
            np.arange(CANDIDATES),
            target.candidates.labels.numpy(),
            some.scores.astype(np.float64),
            some.guesses,
            looked.truth[target.client],
        )
        for target, some in zip(targets, scores, strict=True)
    ]
    return {"loss-threshold": evaluate_scores("loss-threshold", "", "", clients)}


def test_a_peer_finds_members_of_an_overtrained_prompt_among_its_experts(
    task: Task,
) -> None:
    looked = look(memory, task, clients=8)
    alone = without_suspects(looked.adversary, looked.targets)
    assert [target.client for target in alone] == [f"client-{i}" for i in range(1, 8)]
    assert all(target.reconstructed.suspects == () for target in alone)
    linked, without = leak_of(looked, looked.targets), leak_of(looked, alone)
    assert linked["loss-threshold"].auroc.low > 0.7
    found = measure_linkage_gain(looked.messages, looked.targets, linked, without)
    assert found.linked_right.low > found.linked_right_by_chance
    assert found.linked_right_by_chance == pytest.approx(1 / 7)
    assert found.suspects == 14  # seven others' prompts of two rounds
    assert found.headline.estimate.low > 0
    gain = linked["loss-threshold"].auroc.value - without["loss-threshold"].auroc.value
    assert found.headline.estimate.value == pytest.approx(gain)
    assert LINKAGE_GAIN.to_json(found)["suspects"] == found.suspects


def test_a_peer_that_saw_the_start_only_learns_nothing(task: Task) -> None:
    looked = look(PromptFL(learning_rate=0.2, epochs=60), task, rounds=1, seen=0)
    assert without_suspects(looked.adversary, looked.targets) == []
    assert not leak_of(looked, looked.targets)["loss-threshold"].auroc.excludes(0.5)


def test_a_peer_that_never_received_the_target_s_prompt_is_not_right(
    task: Task,
) -> None:
    """One expert of one round: whichever it is, the other target gets it too."""
    looked = look(replace(memory, experts=1), task, rounds=1)
    assert all(len(target.reconstructed.suspects) == 1 for target in looked.targets)
    leak = leak_of(looked, looked.targets)
    found = measure_linkage_gain(looked.messages, looked.targets, leak, leak)
    assert found.linked_right.value == found.linked_right_by_chance == 0.5
    assert found.headline.estimate.value == 0


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Audit]:
    return audited_peers(tmp_path_factory.mktemp("runs"))


def test_an_audit_says_how_much_more_the_peer_learns_than_in_promptfl(
    audits: dict[str, Audit], tmp_path: Path
) -> None:
    audit = audits["pfedmoap"]
    found = audit.part(LINKAGE_GAIN)
    assert found is not None
    assert {"rmia", "loss-threshold", "lira"} <= set(found.auroc_difference)
    assert found.suspects == 6  # three others, two rounds
    assert found.linked_right_by_chance == pytest.approx(1 / 3)
    gain = audit.auroc.value - found.auroc_without.value
    assert found.headline.estimate.value == pytest.approx(gain)
    stored = json.loads((save_audit(audit, tmp_path) / "audit.json").read_text())
    estimate = stored["linking"]["auroc_difference"]["rmia"]["estimate"]
    assert estimate["value"] == pytest.approx(gain)


def test_terminal_and_page_say_it_in_one_sentence(audits: dict[str, Audit]) -> None:
    found = audits["pfedmoap"].part(LINKAGE_GAIN)
    assert found is not None
    (said,) = sentences(found, "coin")
    assert "6 anonymous prompts" in said
    assert "what a PromptFL client learns" in said
    assert said in unescape(render_report([audits["pfedmoap"]]))
    console = Console(width=200, record=True, file=io.StringIO())
    print_table([audits["pfedmoap"]], console)
    assert "anonymous prompts" in console.export_text()


def test_who_gets_averages_only_has_nothing_to_link(audits: dict[str, Audit]) -> None:
    audit = audits["promptfl"]
    assert audit.part(LINKAGE_GAIN) is None
    assert "linking" not in audit.to_dict()
    assert LINKAGE_GAIN.title not in render_report([audit])


def make_linked() -> Audit:
    audit = make_audit(closeness=True)
    gain = Comparison(Estimate(0.02, -0.01, 0.05, (90, 90), "paired"), 0.2)
    found = LinkageGain(
        "shadow", audit.auroc, {"shadow": gain}, proportion(1, 3), 0.2, 4
    )
    return replace(audit, parts={**audit.parts, LINKAGE_GAIN.name: found})


def test_what_was_saved_comes_back_whole(tmp_path: Path) -> None:
    audit = make_linked()
    assert restore_audit(stored(audit, tmp_path)).to_dict() == audit.to_dict()
