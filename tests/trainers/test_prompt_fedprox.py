from typing import Any

import pytest
import torch

from privaudit.core.seeds import Seeds
from privaudit.federated.batches import (
    Batch,
    gradients_of,
)
from privaudit.federated.federation import Federation, run_round
from privaudit.federated.trainer import Cohort, Records, Round, Task
from privaudit.trainers.prompt_fedprox import PromptFedProx
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning.prompts import proximal
from privaudit.tuning.prompts.gradients import fixed_batch
from privaudit.tuning.prompts.proximal import pull

Shards = dict[str, Records]
STEPS: dict[str, Any] = {"learning_rate": 0.05, "momentum": 0.0, "batch_size": 0}


def train(trainer: Any, task: Task, shards: Shards) -> torch.Tensor:
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    for index in range(2):
        run_round(trainer, task, [federation], index)
    return federation.server["context"]


def distance(mu: float, task: Task, shards: Shards) -> float:
    """How far one round moves the prompt."""
    trainer = PromptFedProx(mu=mu, epochs=60, **STEPS | {"learning_rate": 0.01})
    federation = Federation.begin(trainer, task, shards, Seeds(0))
    before = federation.server["context"]
    run_round(trainer, task, [federation], 0)
    return float((federation.server["context"] - before).norm())


def test_without_mu_it_is_promptfl_exactly(task: Task, shards: Shards) -> None:
    prox = train(PromptFedProx(mu=0, epochs=5), task, shards)
    assert torch.equal(prox, train(PromptFL(epochs=5), task, shards))


def test_two_full_steps_have_the_penaltys_gradient_by_hand(
    task: Task, shards: Shards
) -> None:
    """The first step leaves the anchor, the second is pulled back by mu times that."""
    trainer = PromptFedProx(mu=3.0, epochs=2, **STEPS)
    shard = shards["client-0"]
    cohort = Cohort.of(["client-0"], [shard])
    anchor = torch.full((1, 3, 5), 0.1)

    def slope(context: torch.Tensor) -> torch.Tensor:
        leaf = context.clone().requires_grad_()
        logits = 10 * shard.features @ task.prompts(leaf)[0].T
        loss = torch.nn.functional.cross_entropy(logits, shard.labels)
        return torch.autograd.grad(loss, leaf)[0]

    first = anchor - 0.05 * slope(anchor)
    second = first - 0.05 * (slope(first) + 3.0 * (first - anchor))
    at = Round(0, Seeds(0), ("client-0",))
    done = trainer.local_update(task, cohort, {"context": anchor}, {}, at)
    torch.testing.assert_close(done.sent["context"] / len(shard), second)


def has_gradient(task: Task, shards: Shards) -> bool:
    """Say whether a pull as strong as this holds the prompt back at all."""
    return distance(8.0, task, shards) < 0.9 * distance(0.0, task, shards)


def test_the_penalty_holds_back_and_a_detached_one_would_not(
    task: Task, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: with the term detached, as published in four places, nothing pulls."""
    assert has_gradient(task, shards)
    monkeypatch.setattr(
        proximal, "pull", lambda c, a, strength: pull(c.detach(), a, strength)
    )
    assert not has_gradient(task, shards)


def test_more_mu_stays_closer(task: Task, shards: Shards) -> None:
    moved = [distance(mu, task, shards) for mu in (0.0, 1.0, 4.0, 16.0)]
    assert moved == sorted(moved, reverse=True)


def test_the_pulls_gradient_leads_to_the_anchor(task: Task, shards: Shards) -> None:
    contexts, anchors = torch.randn(
        2, 3, 3, 5, generator=torch.Generator().manual_seed(0)
    )
    gradients, losses = gradients_of(
        lambda p, batch: pull(p["context"], anchors, 0.5),
        {"context": contexts},
        batch=_any_batch(task, shards),
    )
    torch.testing.assert_close(gradients["context"], 0.5 * (contexts - anchors))
    torch.testing.assert_close(
        losses, 0.25 * (contexts - anchors).pow(2).sum(dim=(1, 2))
    )


def _any_batch(task: Task, shards: Shards) -> Batch:
    cohort = Cohort.of(list(shards), list(shards.values()))
    return fixed_batch(cohort, Round(0, Seeds(0), task.clients), 4)
