"""Logits by optimal transport between a picture's parts and several prompts a class.

The plan is a constant to gradients. So a loss and its gradient by the text features
come from one sweep over some records at a time, and memory stays flat however many
there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from privaudit.core.errors import ConfigError
from privaudit.datasets.picture_tokens import PictureTokens
from privaudit.federated.batches import Batch
from privaudit.federated.trainer import Records, Signals, Task
from privaudit.tuning.prompts.learning import QUERY_CHUNK
from privaudit.tuning.prompts.optimal_transport import Transport, transport_plan

ENTRIES = 200_000  # of a plan, for one prompt: what the caches of a core hold

Texts = Float[Tensor, "k prompts classes d"]
Tokens = Float[Tensor, "k b parts d"]


def tokens_of(records: Records | Batch) -> PictureTokens:
    """Return the parts of pictures, not yet read.

    Raises:
        ConfigError: The records have none.
    """
    if records.tokens is None:
        raise ConfigError(
            "Optimal transport matches prompts with the parts of a picture, and these "
            "records are pooled features without parts. Use a data set of pictures, "
            'or a method that needs no parts, such as "promptfl".'
        )
    return records.tokens


@dataclass(frozen=True)
class _Part:
    """Some clients' plans for some records."""

    clients: slice
    records: slice
    tokens: Float[Tensor, "k rows d"]
    plan: Float[Tensor, "prompts k parts b classes"]
    logits: Float[Tensor, "k b classes"]


def _solve(
    text: Texts,
    tokens: Tokens,
    scale: float,
    transport: Transport,
    mask: Bool[Tensor, "k b"] | None,
) -> Iterator[_Part]:
    """Yield the plans of all records, as many at once as fit a cache."""
    clients, records, parts, _ = tokens.shape
    entries = parts * text.shape[2]
    some_records = max(1, ENTRIES // entries)
    if transport.stop == "batch":
        some_records = records
    some_clients = max(1, ENTRIES // (entries * records))
    for first in range(0, clients, some_clients):
        who = slice(first, first + some_clients)
        for start in range(0, records, some_records):
            what = slice(start, start + some_records)
            shown = None if mask is None else mask[who, what]
            yield _solve_part(text, tokens, scale, transport, shown, who, what)


def _solve_part(
    text: Texts,
    tokens: Tokens,
    scale: float,
    transport: Transport,
    mask: Tensor | None,
    clients: slice,
    records: slice,
) -> _Part:
    chunk, words = tokens[clients, records].transpose(1, 2), text[clients]
    k, parts, b, width = chunk.shape
    flat = chunk.reshape(k, parts * b, width)
    prompts, classes = words.shape[1:3]
    similarity = flat.new_empty(prompts, k, parts, b, classes)
    for row, out in zip(words.unbind(1), similarity, strict=True):
        torch.bmm(flat, row.mT, out=out.view(k, parts * b, classes))
    plan = transport_plan(similarity, transport, mask=mask).weights
    logits = scale * similarity.mul_(plan).sum((0, 2))
    return _Part(clients, records, flat, plan, logits)


@torch.no_grad()
def transported_logits(
    text: Texts, tokens: Tokens, scale: float, transport: Transport
) -> Float[Tensor, "k b classes"]:
    """Return scale * sum(plan * similarity), not divided by the transported mass.

    Source: Li et al., CVPR 2024 (FedOTP), equation 6, as its code computes it.
    """
    logits = text.new_empty(*tokens.shape[:2], text.shape[2])
    for part in _solve(text, tokens, scale, transport, None):
        logits[part.clients, part.records] = part.logits
    return logits


def transported_losses(
    task: Task, text: Texts, batch: Batch, transport: Transport
) -> Float[Tensor, " k"]:
    """Return each client's mean cross-entropy, differentiable by the text features."""
    scale = task.logit_scale
    return _Losses.apply(text, batch, scale, transport)  # type: ignore[no-untyped-call]


def transported_record_losses(
    task: Task, text: Texts, batch: Batch, transport: Transport
) -> Float[Tensor, "k b"]:
    """Return every record's cross-entropy, differentiable by the text features.

    Takes much more memory than :func:`transported_losses`: text features for each
    record. A record's loss is its own if the transport doesn't stop by batch.
    """
    drawn = text.new_empty(*batch.mask.shape, *text.shape[1:])
    with torch.no_grad():
        for part in _solve_batch(text.detach(), batch, task.logit_scale, transport):
            tokens = part.tokens.view(*part.plan.shape[1:4], -1)
            drawn[part.clients, part.records] = torch.einsum(
                "pkmbc,kmbd->kbpcd", part.plan, tokens
            )
    logits = task.logit_scale * torch.einsum("kbpcd,kpcd->kbc", drawn, text)
    return cross_entropy(logits.mT, batch.labels, reduction="none")


@torch.no_grad()
def query_transported(
    task: Task,
    text: Float[Tensor, "models prompts classes d"],
    records: Records,
    transport: Transport,
) -> Iterator[Signals]:
    """Yield log-probabilities [models, chunk, classes] by transport."""
    held = tokens_of(records)
    for chosen in torch.arange(len(held)).split(QUERY_CHUNK):
        tokens = held[chosen].read(text.device)
        expanded = tokens.expand(len(text), *tokens.shape)
        logits = transported_logits(text, expanded, task.logit_scale, transport)
        yield {"log_probabilities": logits.log_softmax(-1)}


class _Losses(torch.autograd.Function):
    """Mean losses, whose gradients are made in the same sweep."""

    @staticmethod
    def forward(
        context: Any, text: Tensor, batch: Batch, scale: float, transport: Transport
    ) -> Tensor:
        losses, gradient = _sweep(text, batch, scale, transport)
        sizes = batch.sizes.clamp(min=1).to(text.dtype)
        context.save_for_backward(gradient / sizes[:, None, None, None])
        return losses / sizes

    @staticmethod
    def backward(context: Any, *outer: Any) -> Any:
        (gradient,) = context.saved_tensors
        return outer[0][:, None, None, None] * gradient, None, None, None


def _sweep(
    text: Texts, batch: Batch, scale: float, transport: Transport
) -> tuple[Float[Tensor, " k"], Texts]:
    """Return each client's summed loss, and its gradient by the text features."""
    total, gradient = text.new_zeros(len(text)), torch.zeros_like(text)
    for part in _solve_batch(text, batch, scale, transport):
        place = part.clients, part.records
        labels, shown = batch.labels[place], batch.mask[place]
        losses = cross_entropy(part.logits.mT, labels, reduction="none")
        total[part.clients] += (losses * shown).sum(1)
        errors = part.logits.softmax(-1) - one_hot(labels, part.logits.shape[-1])
        errors.mul_(scale * shown[..., None])
        carried = part.plan.mul_(errors[:, None]).flatten(2, 3)
        for prompt, weights in enumerate(carried):
            gradient[part.clients, prompt] += weights.mT @ part.tokens
    return total, gradient


def _solve_batch(
    text: Texts, batch: Batch, scale: float, transport: Transport
) -> Iterator[_Part]:
    tokens = tokens_of(batch).read(text.device)
    return _solve(text, tokens, scale, transport, batch.mask)
