from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import Adversary, Target
from privaudit.core.seeds import Seeds
from privaudit.federated.threat_models import find_threat
from privaudit.federated.trainer import Records, Task, Trainer
from privaudit.federated.transcript import Message
from privaudit.trainers.coop import CoOp
from privaudit.trainers.fedpt_dhapa import FedPTDhapa
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import with_noise

ON_UPLOADS = {"update-alignment"}
ON_STATISTICS = {"shared-statistics"}


@dataclass(frozen=True)
class Attacked:
    """A run under attack, with the truth that the attack must not need."""

    adversary: Adversary
    targets: Sequence[Target]
    is_member: Sequence[np.ndarray]


@pytest.fixture
def attacked(
    name: str,
    task: Task,
    make_records: Callable[..., Records],
    train: Callable[..., list[Message]],
) -> Callable[[bool], Attacked]:
    """Release prompts that have learned noise by heart, or that never saw it.

    Attacks on uploads get those of one step on whole shards, sums of gradients; those
    on statistics get a trainer that sends some.
    """

    def build(trained_on_members: bool) -> Attacked:
        trainer: Trainer
        trainer = CoOp(learning_rate=0.2, epochs=60, batch_size=0, momentum=0.9)
        if name in ON_UPLOADS:
            trainer = PromptFL(learning_rate=1e-3, epochs=1, batch_size=0, momentum=0)
        if name in ON_STATISTICS:
            trainer = FedPTDhapa()
        world = replace(task, public=with_noise(make_records(160, seed=1), 99))
        candidates, shards, truth = [], {}, []
        for number, client in enumerate(task.clients):
            records = with_noise(make_records(24, seed=50 + number), number)
            coin = np.random.default_rng(number).random(24) < 0.5
            other = with_noise(make_records(12, seed=70 + number), 7 + number)
            shard = (
                records.pick(torch.from_numpy(coin)) if trained_on_members else other
            )
            candidates.append(records)
            shards[client] = shard
            truth.append(coin)
        on_server = name in ON_UPLOADS | ON_STATISTICS
        threat = find_threat("server" if on_server else "released")
        view = threat(train(trainer, world, shards))
        adversary = Adversary(trainer, world, threat, view, Seeds(1))
        targets = [
            Target(client, trainer.reconstruct(world, view, client), records)
            for client, records in zip(task.clients, candidates, strict=True)
        ]
        return Attacked(adversary, targets, truth)

    return build
