from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federation.query import ask
from privaudit.federation.trainer import Task
from privaudit.trainers.fedotp import FedOTP
from privaudit.tuning.prompts.learning import pair_texts
from privaudit.tuning.prompts.optimal_transport import (
    transport_plan,
    transported_logits,
)
from tests.toy_federation import Play, Shards, trained_alone


def make(**options: Any) -> FedOTP:
    return FedOTP(**({"epochs": 2, "learning_rate": 0.05} | options))


def prompts_of(trainer: FedOTP, task: Task, client: str) -> dict[str, Tensor]:
    kept = trainer.start_client(task, client, Seeds(0))
    return {**trainer.start(task, Seeds(0)), **kept}


def test_one_step_descends_both_prompts_and_sends_the_global_one(
    task: Task, shards: Shards
) -> None:
    """Oracle: the transported similarities differentiated, the plan as a constant."""
    trainer, shard = make(epochs=1, momentum=0.0), shards["client-0"]
    start = prompts_of(trainer, task, "client-0")
    leaves = {n: t.clone()[None].requires_grad_() for n, t in start.items()}
    assert shard.tokens is not None
    texts = pair_texts(task, leaves)
    similarity = torch.einsum("kpcd,bmd->pkmbc", texts, shard.tokens.read())
    plan = transport_plan(similarity.detach(), trainer.transport).weights
    logits = task.logit_scale * (plan * similarity).sum((0, 2))[0]
    gradients = torch.autograd.grad(
        cross_entropy(logits, shard.labels), list(leaves.values())
    )
    shared, own = ({name: start[name]} for name in ("global", "local"))
    found, done = trained_alone(trainer, task, shard, shared, own)
    for name, gradient in zip(leaves, gradients, strict=True):
        want = start[name] - 0.05 * gradient
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)
    assert done.sent["weight"] == len(shard)


def test_training_lowers_the_loss(play: Play) -> None:
    played = play(make(epochs=5), rounds=0)
    losses = []
    for _ in range(4):
        played.step()
        losses.append(sum(played.federation.losses.values()))
    assert losses[-1] < 0.7 * losses[0]


def test_two_equal_prompts_answer_as_one_does(task: Task) -> None:
    trainer, prompt = FedOTP(stop="never"), torch.ones(1, 3, 5) / 10
    answers = ask(trainer, task, {"global": prompt, "local": prompt}, task.public)
    one = task.prompts(prompt)[:, None]
    assert task.public.tokens is not None
    logits = transported_logits(
        one, task.public.tokens.read()[None], task.logit_scale, trainer.transport
    )
    torch.testing.assert_close(answers, logits.log_softmax(-1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", [{"stop": "batch"}, {"balanced": True}])
def test_published_variants_train_otherwise(
    settings: dict[str, Any], play: Play
) -> None:
    sent = [
        play(make(entropy=0.5, **options), rounds=1).server["global"]
        for options in ({}, settings)
    ]
    assert not torch.equal(*sent)
    torch.testing.assert_close(*sent, rtol=0.5, atol=0.05)


def test_pooled_features_are_refused_in_training_and_in_queries(
    play: Play, task: Task, shards: Shards
) -> None:
    trainer = make()
    pooled = {c: replace(s, tokens=None) for c, s in shards.items()}
    with pytest.raises(ConfigError, match="data set of pictures"):
        play(trainer, rounds=1, shards=pooled)
    model = stack([prompts_of(trainer, task, "client-0")])
    with pytest.raises(ConfigError, match="data set of pictures"):
        ask(trainer, task, model, pooled["client-0"])
    assert FedOTP.image_tokens
