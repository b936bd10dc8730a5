from typing import Any

import pytest
import torch

from privaudit.federation.batches import gradients_of
from privaudit.federation.trainer import Cohort, Task
from privaudit.trainers.prompt_fedprox import PromptFedProx
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning import optimiser
from privaudit.tuning.optimiser import pull
from privaudit.tuning.prompts.gradients import fixed_batch
from tests.toy_federation import AT, Play, Shards, context_gradient

STEPS: dict[str, Any] = {"learning_rate": 0.05, "momentum": 0.0, "batch_size": 0}


def distance(mu: float, play: Play) -> float:
    """How far one round moves the prompt."""
    trainer = PromptFedProx(mu=mu, epochs=60, **STEPS | {"learning_rate": 0.01})
    before, after = (
        play(trainer, rounds=rounds).server["context"] for rounds in (0, 1)
    )
    return float((after - before).norm())


def test_without_mu_it_is_promptfl_exactly(play: Play) -> None:
    prox, plain = (
        play(trainer, rounds=2).server["context"]
        for trainer in (PromptFedProx(mu=0, epochs=5), PromptFL(epochs=5))
    )
    assert torch.equal(prox, plain)


def test_two_full_steps_have_the_penaltys_gradient_by_hand(
    task: Task, shards: Shards
) -> None:
    """The first step leaves the anchor, the second is pulled back by mu times that."""
    trainer = PromptFedProx(mu=3.0, epochs=2, **STEPS)
    shard, anchor = shards["client-0"], torch.full((3, 5), 0.1)
    first = anchor - 0.05 * context_gradient(task, anchor, shard)
    slope = context_gradient(task, first, shard) + 3.0 * (first - anchor)
    cohort = Cohort.of(["client-0"], [shard])
    done = trainer.local_update(task, cohort, {"context": anchor[None]}, {}, AT)
    second = (first - 0.05 * slope)[None]
    torch.testing.assert_close(done.sent["context"] / len(shard), second)


def test_the_penalty_holds_back_and_a_detached_one_would_not(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Must fail: with the term detached, as published in four places, nothing pulls."""
    assert distance(8.0, play) < 0.9 * distance(0.0, play)
    monkeypatch.setattr(
        optimiser, "pull", lambda c, a, strength: pull(c.detach(), a, strength)
    )
    assert distance(8.0, play) >= 0.9 * distance(0.0, play)


def test_more_mu_stays_closer(play: Play) -> None:
    moved = [distance(mu, play) for mu in (0.0, 1.0, 4.0, 16.0)]
    assert moved == sorted(moved, reverse=True)


def test_the_pulls_gradient_leads_to_the_anchor(cohort: Cohort) -> None:
    contexts, anchors = torch.randn(
        2, 3, 3, 5, generator=torch.Generator().manual_seed(0)
    )
    gradients, losses = gradients_of(
        lambda p, batch: pull(p["context"], anchors, 0.5),
        {"context": contexts},
        batch=fixed_batch(cohort, AT, 4),
    )
    torch.testing.assert_close(gradients["context"], 0.5 * (contexts - anchors))
    torch.testing.assert_close(
        losses, 0.25 * (contexts - anchors).pow(2).sum(dim=(1, 2))
    )
