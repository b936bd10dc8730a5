from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from privaudit.core.errors import ConfigError
from privaudit.datasets.picture_tokens import PictureTokens
from privaudit.federated.batches import Batch
from privaudit.federated.trainer import Records, Task
from privaudit.tuning.prompts import transported_logits as module
from privaudit.tuning.prompts.optimal_transport import Transport, transport_plan
from privaudit.tuning.prompts.transported_logits import (
    query_transported,
    transported_logits,
    transported_losses,
    transported_record_losses,
)
from tests.golden import golden

CLIENTS, RECORDS, PARTS, CLASSES, DIM = 3, 7, 5, 4, 12


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(*shape, DIM, generator=generator, dtype=torch.float64)
    return normalize(raw, dim=-1)


@pytest.fixture
def text() -> Tensor:
    return draw(CLIENTS, 2, CLASSES)


@pytest.fixture
def batch() -> Batch:
    """Clients with 7, 4 and no records; padding is zero."""
    tokens = draw(CLIENTS, RECORDS, PARTS, seed=1)
    mask = torch.arange(RECORDS) < torch.tensor([7, 4, 0])[:, None]
    labels = torch.arange(CLIENTS * RECORDS).view(CLIENTS, RECORDS) % CLASSES
    shown = PictureTokens.of(tokens * mask[:, :, None, None])
    return Batch(tokens.mean(2), labels * mask, mask, shown)


def one_by_one(text: Tensor, tokens: Tensor, transport: Transport) -> Tensor:
    """Oracle: one picture and class after the other, the plan as a constant."""
    logits = []
    for words in text.unbind(1):  # [prompts, d] of a class
        similarity = words @ tokens.T
        plan = transport_plan(similarity.detach()[:, None, :, None, None], transport)
        logits.append((plan.weights[:, 0, :, 0, 0] * similarity).sum())
    return torch.stack(logits)


@pytest.mark.parametrize("case", range(12))
def test_logits_loss_and_gradient_are_the_published_codes(
    case: int, task: Task
) -> None:
    """The published code in float64.

    The file's gradients for a logit scale of 14.285714 are smaller than those of its
    own loss by one factor, 1 - 1.05e-8, hence the relative tolerance.
    """
    known = golden("cot", f"f{case}_")
    raw = torch.from_numpy(known["text_features"]).requires_grad_()
    prompts, classes = int(known["n_prompts"]), int(known["n_classes"])
    text = normalize(raw, dim=-1).view(1, prompts, classes, -1)
    tokens = normalize(torch.from_numpy(known["image_tokens"])[1:], dim=-1)
    transport = Transport(
        float(known["eps"]),
        float(known["top_percent"]),
        stop="batch",
        balanced=str(known["ot"]) == "Sinkhorn",
    )
    tokens = tokens.transpose(0, 1)[None]
    labels = torch.from_numpy(known["labels"])[None]
    mask = torch.ones_like(labels).bool()
    batch = Batch(tokens[:, :, 0], labels, mask, PictureTokens.of(tokens))
    task = replace(
        task,
        backbone=replace(task.classifier, logit_scale=float(known["logit_scale"])),
    )
    loss = transported_losses(task, text, batch, transport)
    (gradient,) = torch.autograd.grad(loss.sum(), raw)
    logits = transported_logits(text.detach(), tokens, task.logit_scale, transport)
    np.testing.assert_allclose(logits[0].numpy(), known["logits"], atol=1e-9)
    assert float(loss.detach()) == pytest.approx(float(known["loss"]), abs=1e-9)
    np.testing.assert_allclose(
        gradient.numpy(), known["grad_text_features"], rtol=2e-8, atol=1e-9
    )


@pytest.mark.parametrize("entries", [1, 50, 200, 10**6])
@pytest.mark.parametrize("stop", ["record", "never"])
def test_losses_and_gradients_are_those_of_pictures_one_by_one(
    stop: Any,
    entries: int,
    task: Task,
    text: Tensor,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many are solved at once; padding and empty clients count for nothing.

    Alone, a class would stop by itself and not with its record: so "record" is
    compared with a threshold that nothing passes before the last iteration.
    """
    monkeypatch.setattr(module, "ENTRIES", entries)
    monkeypatch.setattr("privaudit.tuning.prompts.optimal_transport.THRESHOLD", 1e-300)
    transport = Transport(stop=stop, iterations=9)
    leaf = text.clone().requires_grad_()
    found = transported_losses(task, leaf, batch, transport)
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    want, other = torch.zeros(CLIENTS, dtype=torch.float64), text.clone()
    other.requires_grad_()
    assert batch.tokens is not None
    tokens = batch.tokens.read()
    for client, count in enumerate((7, 4)):
        logits = torch.stack(
            [
                one_by_one(other[client], tokens[client, record], transport)
                for record in range(count)
            ]
        )
        labels = batch.labels[client, :count]
        loss = cross_entropy(task.logit_scale * logits, labels)
        want = want + loss * torch.nn.functional.one_hot(torch.tensor(client), CLIENTS)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), other)[0])
    assert (gradient[2] == 0).all()


@pytest.mark.parametrize("entries", [1, 10**6])
def test_records_losses_add_up_to_the_clients(
    entries: int,
    task: Task,
    text: Tensor,
    batch: Batch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ENTRIES", entries)
    transport, leaf = Transport(stop="never"), text.clone().requires_grad_()
    records = transported_record_losses(task, leaf, batch, transport) * batch.mask
    means = records.sum(1) / batch.sizes.clamp(min=1)
    whole = transported_losses(task, leaf, batch, transport)
    torch.testing.assert_close(means, whole)
    torch.testing.assert_close(
        torch.autograd.grad(means.sum(), leaf)[0],
        torch.autograd.grad(whole.sum(), leaf)[0],
    )


def test_one_prompt_that_takes_all_gives_the_mean_over_parts(
    task: Task, text: Tensor, batch: Batch
) -> None:
    """By hand: each part gives all it has, wherever that is."""
    assert batch.tokens is not None
    tokens = batch.tokens.read()
    logits = transported_logits(
        text[:, :1], tokens, task.logit_scale, Transport(balanced=True)
    )
    mean = tokens.mean(2)
    want = task.logit_scale * torch.einsum("kbd,kcd->kbc", mean, text[:, 0])
    torch.testing.assert_close(logits, want)


def test_a_query_gives_each_models_probabilities(
    task: Task, text: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUERY_CHUNK", 4)
    tokens = draw(RECORDS, PARTS, seed=3)
    pictures = PictureTokens.of(tokens)
    records = Records(tokens.mean(1), torch.zeros(RECORDS).long(), pictures)
    answers = query_transported(task, text, records, Transport())
    found = torch.cat([a["log_probabilities"] for a in answers], dim=1)
    asked = tokens.expand(CLIENTS, *tokens.shape)
    logits = transported_logits(text, asked, task.logit_scale, Transport())
    torch.testing.assert_close(found, logits.log_softmax(-1))


def test_pooled_features_are_refused_with_a_way_out(
    task: Task, text: Tensor, batch: Batch
) -> None:
    pooled = replace(batch, tokens=None)
    with pytest.raises(ConfigError, match="pooled features without parts"):
        transported_losses(task, text, pooled, Transport())
