"""Uploads in the clear that are lost on their way."""

from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import train
from privaudit.federated.federation import RoundRecord
from privaudit.federated.participants import trained_clients
from privaudit.federated.trainer import Trainer
from privaudit.privacy.events import MechanismEvent
from privaudit.trainers.dp_fpl import DPFPL
from privaudit.trainers.prompt_fedamp import PromptFedAMP
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import common_cache
from tests.toy_federation import Play, Shards

QUICK: dict[str, Any] = {"seed": 0, "rounds": 2, "epochs": 1, "participation": 0.5}


def senders(record: RoundRecord) -> list[str]:
    return [m.sender for m in record.messages if m.is_update]


def test_without_dropout_nothing_is_lost(play: Play, shards: Shards) -> None:
    rounds = play(PromptFL(epochs=1), rounds=12, dropout=0.0).rounds
    assert all(senders(record) == list(shards) for record in rounds)


def test_about_so_many_are_lost_and_the_mean_is_of_the_others(
    play: Play, shards: Shards
) -> None:
    played = play(PromptFL(epochs=1), rounds=1, dropout=0.5)
    sums = played.uploads().values()
    assert 0 < len(sums) < len(shards)
    mean = sum(s["context"] for s in sums) / sum(s["weight"] for s in sums)
    assert torch.allclose(played.server["context"], torch.as_tensor(mean))
    many = play(PromptFL(epochs=1), rounds=60, dropout=0.5).rounds
    assert 60 < sum(len(senders(r)) for r in many) < 120  # of 180, by the coin


@pytest.mark.parametrize("trainer", [PromptFL(epochs=1), PromptFedAMP(epochs=1)])
def test_a_round_in_which_all_are_lost_changes_nothing(
    trainer: Trainer, play: Play
) -> None:
    before = play(trainer, rounds=0).server
    played = play(trainer, rounds=3, dropout=0.999)
    assert [senders(record) for record in played.rounds] == [[], [], []]
    for name, tensor in before.items():
        assert torch.equal(played.server[name], tensor)


def test_lost_noise_is_missing_in_the_certificate(play: Play, shards: Shards) -> None:
    trainer = DPFPL(epsilon=8.0, noise_at="distributed")
    whole, lossy = (
        play(trainer, rounds=1, dropout=dropout).rounds[0] for dropout in (0.0, 0.5)
    )
    there = len(senders(lossy))
    assert 0 < there < len(shards)
    full, less = _summed(whole), _summed(lossy)
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
