from dataclasses import replace
from typing import Literal

import pytest
import torch

from privaudit.attacks.shadow import Shadow, _AttackModels, _balanced
from privaudit.auditing.signals import SignalTable
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.trainers.coop import CoOp
from tests.conftest import noisy_candidates, toy_records, with_noise
from tests.toy_federation import Play, auroc_of


def test_members_and_others_weigh_the_same_in_each_class() -> None:
    truth = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    there = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, 1]])
    weight = _balanced(truth, there)
    torch.testing.assert_close((weight * truth).sum(dim=1), torch.ones(2))
    torch.testing.assert_close((weight * (1 - truth)).sum(dim=1), torch.ones(2))


def test_each_record_is_judged_by_its_own_class() -> None:
    """Stacked perceptrons equal one perceptron at a time."""
    stream = Seeds(0).stream("perceptrons")
    inputs = stream.normal_tensor((20, 5))
    labels = torch.arange(20) % 3
    models = _AttackModels(inputs, 3, hidden=4, stream=stream)
    together = models(inputs, labels)
    for row in range(20):
        alone = models(inputs[row : row + 1], labels[row : row + 1])
        torch.testing.assert_close(alone[0], together[row])


@pytest.mark.parametrize("vector", ["full", "sorted"])
def test_a_pooled_attack_model_sees_the_label_s_own_probability(
    vector: Literal["full", "sorted"],
) -> None:
    logs = torch.tensor([[[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]]]).log()
    labels = torch.tensor([1, 2])
    signals = SignalTable(labels, logs[0, [0, 1], labels].unsqueeze(0), logs)
    seen, which = Shadow(attack_models="pooled", vector=vector)._seen(signals)
    assert seen.shape == (2, 4)
    torch.testing.assert_close(seen[:, 3].exp(), torch.tensor([0.2, 0.3]))
    assert which.tolist() == [0, 0]
    _, of_class = Shadow(vector=vector)._seen(signals)
    assert of_class.tolist() == [1, 2]


def test_pooled_and_class_wise_models_both_find_what_is_memorised(
    play: Play, task: Task
) -> None:
    trainer = CoOp(learning_rate=0.2, epochs=60, batch_size=0, momentum=0.9)
    coin = torch.arange(24) % 2 == 0
    world = replace(task, public=with_noise(toy_records(200, 5), 5))
    asked = noisy_candidates(task.clients, 24, 40)
    members = {client: records.pick(coin) for client, records in asked.items()}
    played = play(trainer, task=world, shards=members)
    adversary, targets = played.watched("released", asked, seed=2)
    attacks = [
        Shadow(attack_models="pooled", mode="offline"),
        Shadow(attack_models="class-wise", mode="offline"),
        Shadow(attack_models="pooled"),  # class-wise: tests/contracts/test_attacks.py
    ]
    for attack in attacks:
        found = auroc_of(attack(adversary, targets), [coin.numpy()] * len(targets))
        assert found.low > 0.55
