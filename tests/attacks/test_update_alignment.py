from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.attacks.update_alignment import UpdateAlignment
from privaudit.auditing.attack import Adversary, Target
from privaudit.core.errors import ViewError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.base_trainer import BaseTrainer
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import (
    TRAINERS,
    Cohort,
    LocalResult,
    Records,
    Round,
    Signals,
    Task,
    Trainer,
)
from privaudit.federated.transcript import Message
from privaudit.federated.weighted_mean import weighted_upload
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import toy_records

Train = Callable[..., list[Message]]
SENDERS = [
    name
    for name in TRAINERS.names()
    if TRAINERS.find(name).task == "classification"  # type: ignore[attr-defined]
    and name not in {"coop"}  # sends nothing
]


def watched(
    trainer: Trainer, task: Task, shards: dict[str, Records], train: Train
) -> tuple[Adversary, list[Target]]:
    threat = find_threat("server")
    view = threat(train(trainer, task, shards))
    adversary = Adversary(trainer, task, threat, view, Seeds(1))
    return adversary, [
        Target(client, adversary.reconstruct(client), shard)
        for client, shard in shards.items()
    ]


@pytest.mark.parametrize("name", SENDERS)
def test_every_trainer_that_sends_something_can_be_watched(
    name: str, task: Task, shards: dict[str, Records], train: Train
) -> None:
    trainer = TRAINERS.find(name)()
    if "epochs" in trainer.__dataclass_fields__:  # type: ignore[attr-defined]
        trainer = replace(trainer, epochs=2)  # type: ignore[type-var]
    adversary, targets = watched(trainer, task, shards, train)
    for target, scores in zip(
        targets, UpdateAlignment(reference=20)(adversary, targets), strict=True
    ):
        assert set(scores.by_round) == set(range(task.rounds))
        assert np.isfinite(scores.scores).all()
        assert np.abs(scores.scores).max() <= 2
        assert len(scores.scores) == len(target.candidates)


def test_a_lone_record_points_exactly_along_what_it_sent(
    task: Task, train: Train
) -> None:
    """One record a client, one step: the upload is that record's gradient."""
    lonely = {
        client: toy_records(1, 60 + number)
        for number, client in enumerate(task.clients)
    }
    trainer = PromptFL(epochs=1, momentum=0, learning_rate=0.1)
    adversary, targets = watched(trainer, replace(task, rounds=1), lonely, train)
    public = adversary.task.public
    asked = [
        replace(t, candidates=join(t.candidates, public.pick(torch.arange(10))))
        for t in targets
    ]
    for scores in UpdateAlignment()(adversary, asked):
        assert scores.scores.argmax() == 0


def join(one: Records, other: Records) -> Records:
    return Records(
        torch.cat([one.features, other.features]), torch.cat([one.labels, other.labels])
    )


def test_without_uploads_it_says_what_is_missing(
    task: Task, shards: dict[str, Records], train: Train
) -> None:
    adversary, targets = watched(PromptFL(), task, shards, train)
    threat = find_threat("released")
    blind = replace(adversary, view=threat(adversary.view.messages))
    with pytest.raises(ViewError, match="holds no update"):
        UpdateAlignment()(blind, targets)


@dataclass(frozen=True)
class SendsMeans(BaseTrainer):
    """Sends the mean feature: a trainer that knows no epochs and no batches."""

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        return {"mean": torch.zeros(task.public.features.shape[1])}

    def local_update(
        self,
        task: Task,
        cohort: Cohort,
        received: Stacked,
        kept: Stacked,
        at: Round,
    ) -> LocalResult:
        means = cohort.features.sum(dim=1) / cohort.sizes.unsqueeze(1)
        return LocalResult(
            weighted_upload(cohort, {"mean": means}), {}, torch.zeros(len(cohort))
        )

    def query(self, *asked: Any, **more: Any) -> Iterator[Signals]:
        raise NotImplementedError


def test_a_trainer_without_epochs_and_batches_can_be_watched(
    task: Task, train: Train
) -> None:
    """Its single step is what it does anyhow."""
    trainer: Any = SendsMeans()
    assert trainer.single_step() == trainer
    lonely = {client: toy_records(1, 60) for client in task.clients}
    adversary, targets = watched(trainer, replace(task, rounds=1), lonely, train)
    mixed = join(lonely["client-0"], task.public)
    asked = replace(targets[0], candidates=mixed)
    assert UpdateAlignment()(adversary, [asked])[0].scores.argmax() == 0
