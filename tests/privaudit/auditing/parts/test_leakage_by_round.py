from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.attacks.output_attacks import LossThreshold
from privaudit.attacks.shadow import Shadow
from privaudit.attacks.update_alignment import UpdateAlignment
from privaudit.auditing.attack import Adversary, Attack, Target
from privaudit.auditing.parts.leakage_by_round import leakage_by_round
from privaudit.federation.trainer import Task
from privaudit.trainers.promptfl import PromptFL
from tests.conftest import toy_records, with_noise
from tests.toy_federation import Play, auroc_of

Watched = tuple[Adversary, list[Target], dict[str, np.ndarray]]
TRAINER = PromptFL(learning_rate=0.5, epochs=60, momentum=0.9)


def watch(task: Task, play: Play, *, learned: bool, count: int = 40) -> Watched:
    """Train on half of each client's candidates, or on other records."""
    truth, shards, candidates = {}, {}, {}
    for number, client in enumerate(task.clients):
        records = with_noise(toy_records(count, 30 + number), number)
        coin = np.random.default_rng(number).random(count) < 0.5
        other = with_noise(toy_records(count // 2, 60 + number), 9 + number)
        shards[client] = records.pick(torch.from_numpy(coin)) if learned else other
        truth[client], candidates[client] = coin, records
    world = replace(task, public=with_noise(task.public, 77))
    played = play(TRAINER, task=world, shards=shards)
    return *played.watched(candidates=candidates), truth


@pytest.fixture
def learned(task: Task, play: Play) -> Watched:
    return watch(task, play, learned=True)


@pytest.fixture
def elsewhere(task: Task, play: Play) -> Watched:
    return watch(task, play, learned=False)


def test_every_round_leaks_where_noise_is_memorised(learned: Watched) -> None:
    attacks: dict[str, Attack]
    attacks = {"loss": LossThreshold(), "alignment": UpdateAlignment()}
    loss, alignment = leakage_by_round(attacks, *learned)
    assert set(loss.by_round) == set(alignment.by_round) == {0, 1, 2}
    assert all(estimate.low > 0.5 for estimate in loss.by_round.values())
    assert loss.meaning.startswith("clients as rebuilt")
    assert alignment.meaning.startswith("this round's uploads")


def test_no_round_leaks_where_nobody_trained_on_a_candidate(elsewhere: Watched) -> None:
    for found in leakage_by_round({"loss": LossThreshold()}, *elsewhere):
        assert sum(e.low > 0.5 for e in found.by_round.values()) == 0


def test_the_last_round_is_the_whole_attack(learned: Watched) -> None:
    """Rebuilt from all uploads so far is, in the end, rebuilt from all."""
    adversary, targets, truth = learned
    (found,) = leakage_by_round({"loss": LossThreshold()}, *learned)
    scores = LossThreshold()(adversary, targets)
    assert found.by_round[2] == auroc_of(scores, [truth[t.client] for t in targets])


def test_attacks_that_train_shadows_are_left_out(learned: Watched) -> None:
    assert leakage_by_round({"shadow": Shadow()}, *learned) == ()
