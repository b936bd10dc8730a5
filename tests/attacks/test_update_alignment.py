from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.attacks.update_alignment import UpdateAlignment
from privaudit.federation.trainer import TRAINERS, Task
from privaudit.trainers.promptfl import PromptFL
from tests.class_means import ClassMeans
from tests.conftest import toy_records
from tests.toy_federation import CLIENTS, Play, joined

SENDERS = [
    name
    for name in TRAINERS.names()
    if TRAINERS.find(name).task == "classification"  # type: ignore[attr-defined]
    and name not in {"coop"}  # sends nothing
]


@pytest.mark.parametrize("name", SENDERS)
def test_every_trainer_that_sends_something_can_be_watched(
    name: str, play: Play
) -> None:
    trainer = TRAINERS.find(name)()
    if getattr(trainer, "epochs", 0):
        trainer = replace(trainer, epochs=2)  # type: ignore[type-var]
    played = play(trainer)
    adversary, targets = played.watched()
    for target, scores in zip(
        targets, UpdateAlignment(reference=20)(adversary, targets), strict=True
    ):
        assert set(scores.by_round) == set(range(len(played.rounds)))
        assert np.isfinite(scores.scores).all()
        assert np.abs(scores.scores).max() <= 2
        assert len(scores.scores) == len(target.candidates)


def test_a_lone_record_points_exactly_along_what_it_sent(
    play: Play, task: Task
) -> None:
    """One record a client, one step: the upload is that record's gradient."""
    lonely = {c: toy_records(1, 60 + n) for n, c in enumerate(CLIENTS)}
    trainer = PromptFL(epochs=1, momentum=0, learning_rate=0.1)
    others = task.public.pick(torch.arange(10))
    asked = {client: joined(own, others) for client, own in lonely.items()}
    played = play(trainer, shards=lonely, task=replace(task, rounds=1))
    for scores in UpdateAlignment()(*played.watched(candidates=asked)):
        assert scores.scores.argmax() == 0


def test_a_trainer_without_epochs_and_batches_can_be_watched(
    play: Play, task: Task
) -> None:
    """Its single step is what it does anyhow."""
    trainer: Any = ClassMeans()
    assert trainer.single_step() == trainer
    lonely = dict.fromkeys(CLIENTS, toy_records(1, 60))
    played = play(trainer, shards=lonely, task=replace(task, rounds=1))
    asked = {"client-0": joined(lonely["client-0"], task.public)}
    (scores,) = UpdateAlignment()(*played.watched(candidates=asked))
    assert scores.scores.argmax() == 0
