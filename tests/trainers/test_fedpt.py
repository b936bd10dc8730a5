from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Cohort, Round, Task, Trainer
from privaudit.models.interfaces import Head, LanguageModel
from privaudit.trainers.fedpt import FedPT
from privaudit.trainers.fedpt_local import FedPTLocal
from privaudit.trainers.full_fedavg import FullFedAvg
from privaudit.trainers.full_fedprox import FullFedProx
from privaudit.trainers.lora_fedavg import LoraFedAvg
from privaudit.tuning.transformers.prompt_tuning import TIERS, PromptTuner
from tests.conftest import CLASSES, DIM
from tests.toy_federation import Play, Shards
from tests.toy_language import toy_dialogues, toy_writing_task
from tests.toy_tower import toy_tower

PROMPT = "embedding.weight"


def close(one: Any, other: Any, atol: float = 1e-6) -> bool:
    return all(torch.allclose(one[name], other[name], atol=atol) for name in one)


def test_one_full_step_of_sgd_is_the_mean_gradient_by_hand(
    play: Play, task: Task, shards: Shards
) -> None:
    trainer = FedPT(optimizer="sgd", learning_rate=0.3, epochs=1, batch_size=0)
    start = trainer.start(task, Seeds(0))[PROMPT]
    tower, moved, total = toy_tower(DIM, CLASSES), torch.zeros_like(start), 0
    for shard in shards.values():
        leaf = start.clone().requires_grad_()
        hidden = shard.features @ tower.weight.T + leaf.mean(dim=0)
        logits = 4 * torch.tanh(hidden) @ tower.texts.T
        loss = torch.nn.functional.cross_entropy(logits, shard.labels)
        moved += len(shard) * torch.autograd.grad(loss, leaf)[0]
        total += len(shard)
    server = play(trainer, 1).server
    assert torch.allclose(server[PROMPT], start - 0.3 * moved / total, atol=1e-6)


@pytest.mark.parametrize("peft_method", ["soft-prompt", "prefix", "lora", "p-tuning"])
def test_deltas_end_where_parameters_do(peft_method: str, play: Play) -> None:
    plain = FedPT(peft_method=peft_method)
    deltas = replace(plain, sends="deltas")
    assert close(play(plain, 2).server, play(deltas, 2).server, 1e-5)


def test_a_server_rebuilds_from_deltas_what_the_client_trained(play: Play) -> None:
    plain, deltas = (
        play(FedPT(sends=sends), rounds=2) for sends in ("parameters", "deltas")
    )
    one, other = (p.rebuild("server", "client-1").model for p in (plain, deltas))
    assert close(one, other, atol=1e-5)
    assert not close(one, plain.server, atol=1e-3)  # the client's own, not the mean


def test_a_batch_in_parts_moves_as_it_does_at_once(play: Play) -> None:
    whole = play(FedPT(batch_size=7), 2).server
    for size in (1, 3, 7, 50):
        parts = play(FedPT(batch_size=7, micro_batch=size), 2).server
        assert close(whole, parts, atol=1e-5)


@pytest.mark.parametrize("trainer", [partial(FedPT, peft_method="lora"), LoraFedAvg])
def test_answers_in_parts_count_by_their_tokens(
    trainer: Callable[..., Trainer], play: Play
) -> None:
    task = toy_writing_task()
    shards = {c: toy_dialogues(5 + i, 20 + i) for i, c in enumerate(task.candidates)}
    whole, parts = (
        play(
            trainer(batch_size=4, micro_batch=size), 2, task=task, shards=shards
        ).server
        for size in (0, 1)
    )
    assert isinstance(task.backbone, LanguageModel)
    assert close(whole, parts, atol=1e-5)


def test_bfloat16_is_near_and_not_equal(play: Play) -> None:
    fine = play(FedPT(), 2).server
    coarse = play(FedPT(precision="bfloat16"), 2).server
    assert coarse[PROMPT].dtype == torch.float32
    assert 0 < (fine[PROMPT] - coarse[PROMPT]).abs().max() < 0.1


def test_a_client_keeps_its_machine_in_an_adversarys_federations() -> None:
    trainer = PromptTuner(tiers="three", epochs=8)
    clients = [f"client-{n}" for n in range(60)]
    own = [trainer.epochs_of(client) for client in clients]
    assert own == [trainer.epochs_of(f"federation-7/{client}") for client in clients]
    assert own == [trainer.epochs_of(f"shadow-7 of {client}") for client in clients]
    assert {own.count(int(8 * tier)) > 10 for tier in TIERS} == {True}
    assert {PromptTuner(tiers="three").epochs_of(c) for c in clients} == {2, 3, 5}
    with pytest.raises(ValueError, match="2 epochs have no three parts"):
        PromptTuner(tiers="three", epochs=2)


def test_a_low_machine_makes_fewer_steps(
    task: Task, shards: Shards, cohort: Cohort
) -> None:
    trainer = FedPT(tiers="three", epochs=8, batch_size=0, optimizer="sgd")
    start = trainer.start(task, Seeds(0))
    received = {n: t.expand(len(cohort), *t.shape) for n, t in start.items()}
    at = Round(0, Seeds(0), tuple(shards))
    found, _ = trainer.train(task, cohort, received, at)
    for row, client in enumerate(shards):
        epochs = trainer.epochs_of(client)
        alone = replace(trainer, tiers="none", epochs=epochs)
        own, _ = alone.train(task, cohort, received, at)
        assert torch.allclose(found[PROMPT][row], own[PROMPT][row], atol=1e-6)


def test_alone_clients_send_nothing_and_part(play: Play) -> None:
    played = play(FedPTLocal(), rounds=2)
    for record in played.rounds:
        assert {m.kind for m in record.messages} == {"broadcast"}
    first, second = (played.models[c][PROMPT] for c in ("client-0", "client-1"))
    assert not torch.allclose(first, second, atol=0.01)
    start = play(FedPTLocal(), rounds=0).server
    assert torch.equal(played.server[PROMPT], start[PROMPT])


def test_without_mu_fedprox_is_fedavg(play: Play, task: Task) -> None:
    plain = play(FullFedAvg(), 2).server
    assert close(plain, play(FullFedProx(mu=0.0), 2).server)
    held = play(FullFedProx(mu=1e3), 2).server
    start = FullFedAvg().start(task, Seeds(0))["layer.weight"]
    moved = (plain["layer.weight"] - start).norm()
    assert (held["layer.weight"] - start).norm() < moved / 2


def test_a_second_step_is_pulled_back_by_mu_times_the_first(
    play: Play, shards: Shards
) -> None:
    trainer = FullFedProx(
        mu=3.0, optimizer="sgd", learning_rate=0.2, epochs=2, batch_size=0
    )
    tower, shard = toy_tower(DIM, CLASSES), shards["client-0"]

    def slope(weight: torch.Tensor) -> torch.Tensor:
        leaf = weight.clone().requires_grad_()
        logits = 4 * torch.tanh(shard.features @ leaf.T) @ tower.texts.T
        loss = torch.nn.functional.cross_entropy(logits, shard.labels)
        return torch.autograd.grad(loss, leaf)[0]

    first = tower.weight - 0.2 * slope(tower.weight)
    second = first - 0.2 * (slope(first) + 3.0 * (first - tower.weight))
    one = {"client-0": shard}
    found = play(trainer, 1, shards=one).server
    assert torch.allclose(found["layer.weight"], second, atol=1e-5)


def test_a_head_is_learned_and_sent(play: Play, task: Task, shards: Shards) -> None:
    class WithHead(type(toy_tower(DIM, CLASSES))):  # type: ignore[misc]
        def logits(self, features: Any, tokens: Any, words: Any, tuning: Any) -> Any:
            weight, bias = tuning.head["weight"], tuning.head["bias"]
            moved = features + tuning.prompt.mean(dim=1, keepdim=True)
            return moved @ weight.mT + bias.unsqueeze(1)

    toy = toy_tower(DIM, CLASSES)
    tower = WithHead(toy.weight, toy.texts, Head(CLASSES, DIM))
    backbone = replace(task.classifier, load_tower=partial(lambda t: t, tower))
    task = replace(task, backbone=backbone)
    server = play(FedPT(epochs=30, learning_rate=0.05), 1, task=task).server
    assert server["head.weight"].shape == (CLASSES, DIM)
    shard = shards["client-0"]
    moved = shard.features + server[PROMPT].mean(dim=0)
    outputs = moved @ server["head.weight"].T + server["head.bias"]
    assert (outputs.argmax(dim=1) == shard.labels).float().mean() > 0.6
