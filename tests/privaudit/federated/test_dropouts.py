"""Uploads in the clear that are lost on their way."""

from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federated.federation import Federation, RoundRecord, run_round
from privaudit.federated.participants import trained_clients
from privaudit.federated.runs.training import train
from privaudit.federated.trainer import Records, Task, Trainer
from privaudit.privacy.events import MechanismEvent
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.prompt_fedamp import PromptFedAMP
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import common_cache

Shards = dict[str, Records]
QUICK: dict[str, Any] = {"rounds": 2, "epochs": 1, "participation": 0.5}


def rounds(
    trainer: Trainer, task: Task, shards: Shards, dropout: float, count: int = 12
) -> tuple[Federation, list[RoundRecord]]:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    found = []
    for index in range(count):
        (record,) = run_round(trainer, task, [federation], index, dropout=dropout)
        found.append(record)
    return federation, found


def senders(record: RoundRecord) -> list[str]:
    return [m.sender for m in record.messages if m.is_update]


def test_without_dropout_nothing_is_lost(task: Task, shards: Shards) -> None:
    _, records = rounds(PromptFL(epochs=1), task, shards, 0.0)
    assert all(senders(record) == list(shards) for record in records)


def test_about_so_many_are_lost_and_the_mean_is_of_the_others(
    task: Task, shards: Shards
) -> None:
    trainer = PromptFL(epochs=1)
    federation, (record,) = rounds(trainer, task, shards, 0.5, count=1)
    there = senders(record)
    assert 0 < len(there) < len(shards)
    sums = [m.tensors for m in record.messages if m.kind == "update"]
    mean = sum(s["context"] for s in sums) / sum(s["weight"] for s in sums)
    assert torch.allclose(federation.server["context"], torch.as_tensor(mean))
    _, many = rounds(trainer, task, shards, 0.5, count=60)
    assert 60 < sum(len(senders(r)) for r in many) < 120  # of 180, by the coin


def test_a_round_in_which_all_are_lost_changes_nothing(
    task: Task, shards: Shards
) -> None:
    for trainer in (PromptFL(epochs=1), PromptFedAMP(epochs=1)):
        before = Federation.begin(trainer, task, shards, Seeds(0)).server
        federation, records = rounds(trainer, task, shards, 0.999, count=3)
        assert [senders(record) for record in records] == [[], [], []]
        for name, tensor in before.items():
            assert torch.equal(federation.server[name], tensor)


def test_lost_noise_is_missing_in_the_certificate(task: Task, shards: Shards) -> None:
    trainer = DPFPL(epsilon=8.0, noise_at="distributed")
    _, whole = rounds(trainer, task, shards, 0.0, count=1)
    _, lossy = rounds(trainer, task, shards, 0.5, count=1)
    there = len(senders(lossy[0]))
    assert 0 < there < len(shards)
    full, less = _summed(whole[0]), _summed(lossy[0])
    share = there / len(shards)
    assert less.noise_multiplier == pytest.approx(full.noise_multiplier * share**0.5)
    assert less.parties == there


def _summed(record: RoundRecord) -> MechanismEvent:
    (found,) = (e for e in record.events if e.noise_at == "distributed")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with common_cache(tmp_path_factory):
        folder: Path = tmp_path_factory.mktemp("runs")
        yield train(folder=folder, dropout=0.4, **QUICK)


def test_a_run_loses_uploads_and_only_those_who_arrived_are_attacked(run: Any) -> None:
    sent = {m.sender for m in run.transcript if m.kind == "update"}
    asked = {m.receiver for m in run.transcript if m.kind == "broadcast"}
    assert set(trained_clients(run, "server")) == sent
    assert sent < asked
    again = train(folder=run.path.parent, name="again", dropout=0.4, **QUICK)
    assert again.header["progress"]["head"] == run.header["progress"]["head"]
