from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import stack
from privaudit.federation.trainer import Cohort, Task
from privaudit.trainers.fedpgp import FedPGP
from privaudit.trainers.promptfl import PromptFL
from privaudit.tuning.prompts.contrast import contrast, personal_context
from tests.toy_federation import AT, Play, Shards, context_loss, trained_alone


def make(**options: Any) -> FedPGP:
    return FedPGP(**({"epochs": 2, "learning_rate": 0.05, "rank": 2} | options))


def start(trainer: FedPGP, task: Task) -> dict[str, Tensor]:
    kept = trainer.start_client(task, "client-0", Seeds(0))
    return {**trainer.start(task, Seeds(0)), **kept}


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_one_step_descends_the_loss_and_sends_sigma(
    weight: float, task: Task, shards: Shards
) -> None:
    """Oracle: cross-entropy and contrast, written out and differentiated."""
    trainer = make(epochs=1, momentum=0.0, contrast=weight)
    shard, before = shards["client-0"], start(trainer, task)
    leaves = {n: t.clone()[None].requires_grad_() for n, t in before.items()}
    of_shared, of_own = (
        task.prompts(c) for c in (leaves["context"], personal_context(leaves))
    )
    logits = task.logit_scale * shard.features @ of_own[0].T
    apart = contrast(task.zero_shot, of_shared, of_own, 0.5).sum()
    loss = cross_entropy(logits, shard.labels) + weight * apart
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    own = {name: before[name] for name in ("u", "v")}
    shared = {"context": before["context"]}
    found, done = trained_alone(trainer, task, shard, shared, own)
    for name, gradient in zip(leaves, gradients, strict=True):
        want = before[name] - 0.05 * gradient
        torch.testing.assert_close(found[name], want, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(done.loss, loss.detach()[None])


def test_without_contrast_and_factors_it_is_promptfl(
    task: Task, cohort: Cohort
) -> None:
    """U = V = 0 have no gradient: sigma is trained alone."""
    trainer, plain = make(contrast=0.0), PromptFL(epochs=2, learning_rate=0.05)
    received = stack([trainer.start(task, Seeds(0))] * 3)
    nothing = {"u": torch.zeros(3, 3, 2), "v": torch.zeros(3, 2, 5)}
    found = trainer.local_update(task, cohort, received, nothing, AT)
    want = plain.local_update(task, cohort, received, {}, AT)
    torch.testing.assert_close(found.sent["context"], want.sent["context"])
    assert (found.kept["u"] == 0).all()


def test_the_contrast_draws_sigma_to_the_hand_written_prompt(
    play: Play, task: Task
) -> None:
    near = []
    for weight in (0.0, 20.0):
        played = play(make(contrast=weight, epochs=20, learning_rate=0.01))
        texts = task.prompts(played.server["context"][None])[0]
        near.append(float((texts * task.zero_shot).sum(-1).mean()))
    assert near[1] > near[0] + 0.02


def test_factors_show_in_the_release(play: Play) -> None:
    played = play(make(), rounds=1)
    kept = played.kept["client-1"]
    want = played.server["context"] + kept["u"] @ kept["v"]
    torch.testing.assert_close(played.models["client-1"]["context"], want)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_any_rank_trains(rank: int, play: Play) -> None:
    """Beyond the prompt's 3 tokens, too: more factors for the same product."""
    played = play(make(rank=rank), rounds=0)
    before = {c: k["u"].clone() for c, k in played.kept.items()}
    played.step()
    for client, kept in played.kept.items():
        assert kept["u"].shape == (3, rank)
        assert not torch.equal(kept["u"], before[client])


def test_the_server_fits_its_own_factors_to_an_upload(play: Play, task: Task) -> None:
    """They lower the loss on its own records, and are the same each time."""
    played = play(make(learning_rate=0.005), rounds=1)
    first, again = (played.rebuild("server").model["context"] for _ in range(2))
    assert torch.equal(first, again)
    up = played.uploads()["client-0"]
    sent, fitted = (
        float(context_loss(task, context, task.public))
        for context in (up["context"] / up["weight"], first)
    )
    assert fitted < sent - 0.02
