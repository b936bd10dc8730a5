from dataclasses import replace

import pytest
import torch

from privaudit.attacks.lira import Lira
from privaudit.attacks.output_attacks import LossThreshold
from privaudit.attacks.rmia import Rmia
from privaudit.auditing.scenario import answering, find_scenario
from privaudit.core.errors import AttackError, ConfigError
from privaudit.core.tensors import stack
from privaudit.federation.query import ask
from privaudit.federation.trainer import Task
from privaudit.trainers.coop import CoOp
from privaudit.trainers.lora_fedavg import LoraFedAvg
from tests.conftest import noisy_candidates, toy_records, with_noise
from tests.toy_federation import Play, auroc_of


def test_labels_tell_which_class_is_likeliest_and_no_more(task: Task) -> None:
    trainer, generator = CoOp(), torch.Generator().manual_seed(0)
    models = stack([{"context": torch.randn(3, 5, generator=generator)} for _ in "ab"])
    records = toy_records(20)
    answers = ask(answering(trainer, "labels", "classification"), task, models, records)
    whole = ask(trainer, task, models, records)
    assert torch.equal(answers.argmax(dim=-1), whole.argmax(dim=-1))
    assert len(answers.unique()) == 2
    torch.testing.assert_close(answers.exp().sum(dim=-1), torch.ones(2, 20))


def test_probabilities_are_the_model_s_own() -> None:
    trainer = CoOp()
    assert answering(trainer, "probabilities", "classification") is trainer


def test_another_attack_under_a_label_of_the_scenario_is_not_dropped() -> None:
    plan = find_scenario("server-reconstruct", 5)
    own = Rmia(shadows=5, gamma=2)
    assert plan.besides({"rmia": Rmia(shadows=5), "mine": own}).attacks["mine"] == own
    with pytest.raises(ConfigError, match=r"gamma=2.* was given as 'rmia', and that"):
        plan.besides({"rmia": own})


def test_models_that_write_have_no_labels_to_give() -> None:
    with pytest.raises(AttackError, match="generative models"):
        answering(LoraFedAvg(), "labels", "generation")


@pytest.mark.parametrize("attack", [LossThreshold(), Lira(shadows=16)], ids=str)
def test_who_sees_labels_only_does_no_better(
    attack: LossThreshold | Lira, task: Task, play: Play
) -> None:
    """What labels tell is a function of what probabilities tell."""
    trainer = CoOp(learning_rate=0.2, epochs=60, batch_size=0, momentum=0.9)
    asked, coin = noisy_candidates(task.clients, 60, 40), torch.arange(60) % 2 == 0
    world = replace(task, public=with_noise(toy_records(160, 5), 5))
    members = {client: records.pick(coin) for client, records in asked.items()}
    played = play(trainer, task=world, shards=members)
    adversary, targets = played.watched("released", asked, seed=2)
    found = {}
    for answers in ("probabilities", "labels"):
        restricted = replace(
            adversary, trainer=answering(trainer, answers, "classification")
        )
        truth = [coin.numpy()] * len(targets)
        found[answers] = auroc_of(attack(restricted, targets), truth)
    assert found["probabilities"].low > 0.5
    assert found["labels"].value <= found["probabilities"].high
