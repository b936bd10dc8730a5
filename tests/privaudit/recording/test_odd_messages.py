"""Federations whose messages are not one broadcast and one upload a round, of floats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from privaudit import Auditor, load_run
from privaudit.core.errors import ConfigError, ViewError
from privaudit.core.tensors import Tensors
from privaudit.federated.transcripts.threat_models import find_threat
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from privaudit_labs.shift.distribution_shift import measure_shift, usual_foreign
from tests.privaudit.recording.small_federation import (
    NAMES,
    Linear,
    audited,
    start,
    toss,
)

LATE = NAMES[2]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One client answers the broadcast of round 0 in round 1."""
    place, owner, ledger = tmp_path_factory.mktemp("late") / "run", Linear(), toss()
    with Recorder(place, ledger=ledger, weight="n") as recorder:
        recorder.broadcast(0, NAMES, start())
        sent = {
            name: owner.local_update(start(), ledger.members_of(number), 0)
            for number, name in enumerate(NAMES)
        }
        for name in NAMES[:2]:
            recorder.update(0, name, sent[name], weight=5)
        recorder.broadcast(1, NAMES[:2], sent[NAMES[0]])
        recorder.update(1, LATE, sent[LATE], weight=5)
        recorder.broadcast(2, NAMES, sent[NAMES[0]])
    return place


def test_a_late_upload_answers_the_last_broadcast_before_it(late: Path) -> None:
    view = find_threat("server")(load_run(late).transcript)
    assert view.received_in(LATE, 1).round == 0
    assert view.received_in(NAMES[0], 1).round == 1
    nothing = find_threat("server")(m for m in view.messages if m.round)
    with pytest.raises(ViewError, match="nothing that was sent to it by then"):
        nothing.received_in(LATE, 1)


def test_a_late_upload_is_attacked(late: Path) -> None:
    with use_owner(Linear()):
        audit = Auditor(load_run(late)).attack("update-watch", shadows=0)
        lira = Auditor(load_run(late)).attack(
            attacks=["lira:mode=online"], shadows=8, clients="all"
        )
    assert audit.auroc.value > 0.95
    late_alone = lira.results["lira:mode=online"].clients[2]
    assert late_alone.client == LATE
    scores, truth = late_alone.scores, late_alone.is_member
    assert scores[truth].mean() > scores[~truth].mean()


class _Counting(Linear):
    """Beside the model it sends a counter, a mask and nothing at all."""

    def local_update(
        self, received: Tensors, positions: np.ndarray, seed: int
    ) -> dict[str, Tensor]:
        model = {n: received[n].float() for n in ("weight", "bias")}
        return {**received, **super().local_update(model, positions, seed)}


def test_integers_and_truth_values_are_watched(tmp_path: Path) -> None:
    others = {
        "batches": torch.tensor(7),
        "pruned": torch.tensor([True, False]),
        "codes": torch.ones(2, dtype=torch.int8),
        "none": torch.zeros(0, 3),
    }
    owner, ledger, begin = _Counting(), toss(), {**start(), **others}
    with Recorder(tmp_path / "run", ledger=ledger, weight="n") as recorder:
        recorder.broadcast(0, NAMES, begin)
        for number, name in enumerate(NAMES):
            sent = owner.local_update(begin, ledger.members_of(number), 0)
            recorder.update(0, name, sent, weight=5)
    audit = audited(tmp_path / "run", "update-watch", shadows=0, owner=owner)
    assert audit.auroc.value > 0.95


def test_shift_is_not_measured_on_a_recorded_run(late: Path) -> None:
    run = load_run(late)
    for ask in (measure_shift, usual_foreign):
        with pytest.raises(ConfigError, match="run was trained elsewhere"):
            ask(run)


@pytest.mark.parametrize("damage", ["not finite", "a tensor less"])
def test_a_damaged_upload_leaves_its_client_out(tmp_path: Path, damage: str) -> None:
    """And no other: the audit says who is missing."""
    owner, ledger = Linear(), toss()
    with Recorder(tmp_path / "run", ledger=ledger, weight="n") as recorder:
        recorder.broadcast(0, NAMES, start())
        for number, name in enumerate(NAMES):
            sent = owner.local_update(start(), ledger.members_of(number), 0)
            if name == NAMES[0] and damage == "not finite":
                sent["bias"] *= float("nan")
            elif name == NAMES[0]:
                del sent["bias"]
            recorder.update(0, name, sent, weight=5)
        recorder.broadcast(1, NAMES, sent)
    run = load_run(tmp_path / "run")
    with use_owner(owner):
        for scenario in ("server-reconstruct", "update-watch"):
            audit = Auditor(run).attack(scenario, shadows=0)
            assert [c.client for c in audit.headline.clients] == list(NAMES[1:])
            assert audit.auroc.value > 0.95
            assert f"Left out: {NAMES[0]}." in audit.scenario.note
        alone = Auditor(run).attack("prompt-release", shadows=0)
    assert len(alone.headline.clients) == len(NAMES)
    assert not alone.scenario.note
