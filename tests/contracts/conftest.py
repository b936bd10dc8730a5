from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import ATTACKS, Adversary, Scores, Target
from privaudit.core.errors import PrivauditError
from privaudit.federation.trainer import Records, Task, Trainer
from privaudit.trainers.coop import CoOp
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.fedpt_dhapa import FedPTDhapa
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import toy_records, with_noise
from tests.toy_federation import Play


class World(NamedTuple):
    """What is trained, who looks on, and the least that an attack must find there."""

    trainer: Trainer
    threat: str
    least: float


WORLDS = (
    # Released prompts that memorised noise: an AUROC of about 0.8 to 0.9.
    World(
        CoOp(learning_rate=0.2, epochs=60, batch_size=0, momentum=0.9), "released", 0.6
    ),
    # One step on whole shards: twelve gradients in fifteen dimensions are not
    # distinguished for certain; one is.
    World(
        PromptFL(learning_rate=1e-3, epochs=1, batch_size=0, momentum=0), "server", 0.5
    ),
    World(FedPTDhapa(), "server", 0.6),  # clients send means over their records
    # Low-rank changes of layers: what entered these is in what was sent.
    World(FedPT(peft_method="lora", epochs=4), "server", 0.6),
)


@dataclass(frozen=True)
class Attacked:
    """A run under attack, the scores, and the truth that the attack must not need."""

    world: World
    adversary: Adversary
    targets: Sequence[Target]
    is_member: Sequence[np.ndarray]
    scores: Sequence[Scores]


_ATTACKED: dict[tuple[str, bool], Attacked] = {}  # for all contracts of an attack


@pytest.fixture
def attacked(name: str, task: Task, play: Play) -> Callable[[bool], Attacked]:
    """Attack clients that memorised noise, or never saw it, in the attack's own world.

    That is the first in which it finds what it needs.
    """
    reference = replace(task, public=with_noise(toy_records(160, seed=1), 99))
    candidates = [
        with_noise(toy_records(24, seed=50 + number), number)
        for number in range(len(task.clients))
    ]
    coins = [
        np.random.default_rng(number).random(24) < 0.5
        for number in range(len(task.clients))
    ]

    def shards(trained_on_members: bool) -> dict[str, Records]:
        if trained_on_members:
            picked = zip(task.clients, candidates, coins, strict=True)
            return {who: own.pick(torch.from_numpy(coin)) for who, own, coin in picked}
        return {
            who: with_noise(toy_records(12, seed=70 + number), 7 + number)
            for number, who in enumerate(task.clients)
        }

    def attack(world: World, trained_on_members: bool) -> Attacked:
        played = play(world.trainer, task=reference, shards=shards(trained_on_members))
        asked = dict(zip(task.clients, candidates, strict=True))
        adversary, targets = played.watched(world.threat, asked)
        scores = ATTACKS.find(name)()(adversary, targets)
        return Attacked(world, adversary, targets, coins, scores)

    def find_world(trained_on_members: bool) -> Attacked:
        refused = []
        for world in WORLDS:
            try:
                return attack(world, trained_on_members)
            except PrivauditError as error:
                refused.append(str(error))
        pytest.fail(f"no world has what {name} needs: {refused}")

    def build(trained_on_members: bool) -> Attacked:
        asked = name, trained_on_members
        if asked not in _ATTACKED:
            _ATTACKED[asked] = find_world(trained_on_members)
        return _ATTACKED[asked]

    return build
