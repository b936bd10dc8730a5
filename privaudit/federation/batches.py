"""Batches: the records that each client of a cohort takes in each local step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from privaudit.core.devices import CPU
from privaudit.core.seeds import Stream
from privaudit.core.step_graphs import one_step
from privaudit.core.tensors import Stacked, beside
from privaudit.datasets.records import PictureTokens, TokenSequences
from privaudit.federation.trainer import Cohort, Round


@dataclass(frozen=True)
class Batches:
    """Which records each client takes in each local step.

    Attributes:
        chosen: Positions in the padded cohort.
        mask: False where a client's batch is shorter than the longest, or empty.
        views: Which view of each picture is taken; None takes the picture itself.
    """

    chosen: Int[Tensor, "steps clients batch"]
    mask: Bool[Tensor, "steps clients batch"]
    views: Int[Tensor, "steps clients batch"] | None = None

    def of(self, cohort: Cohort) -> Iterator["Batch"]:
        """Yield what the clients take, step by step."""
        for step, (chosen, mask) in enumerate(zip(self.chosen, self.mask, strict=True)):
            views = None if self.views is None else self.views[step]
            yield pick_batch(cohort, chosen, mask, views)


def epochs_of_batches(
    cohort: Cohort, at: Round, *, epochs: int | Sequence[int], batch_size: int
) -> Batches:
    """Shuffle each client's records anew for every epoch, and cut them into batches.

    ``epochs`` are passes over the shard, for all or for each client; a ``batch_size``
    of 0 takes the whole shard at once.
    """
    sizes = [int(size) for size in cohort.sizes]
    passes = [epochs] * len(cohort) if isinstance(epochs, int) else list(epochs)
    asked = [*zip(cohort.clients, sizes, passes, strict=True)]
    drawn = {
        one: _plan_epochs(*one[1:], batch_size, at.stream("batches", one[0]))
        for one in set(asked)  # federations side by side have clients of one name
    }
    plans = [drawn[one][: at.steps] for one in asked]
    steps = max(len(plan) for plan in plans)
    width = max(1, *(plan.shape[1] for plan in plans))
    # On the CPU, where tokens are picked: no step waits for a device to say which.
    chosen = torch.zeros(steps, len(plans), width, dtype=torch.long, device=CPU)
    mask = torch.zeros_like(chosen, dtype=torch.bool)
    for row, plan in enumerate(plans):
        cells = slice(len(plan)), row, slice(plan.shape[1])
        mask[cells] = plan >= 0
        chosen[cells] = plan.clamp(min=0)
    if cohort.views is None:
        return Batches(chosen, mask)
    views = torch.zeros_like(chosen)
    for row, (client, plan) in enumerate(zip(cohort.clients, plans, strict=True)):
        some = _drawn_views(cohort.views, at.stream("views", client), plan.numel())
        views[: len(plan), row, : plan.shape[1]] = some.view(plan.shape)
    return Batches(chosen, mask, views)


def _plan_epochs(
    size: int, epochs: int, batch_size: int, stream: Stream
) -> Int[Tensor, "steps batch"]:
    """Return a client's records step by step, and -1 where a batch is shorter."""
    if not size or not epochs:
        return torch.zeros(0, 0, dtype=torch.long, device=CPU)
    width = min(batch_size or size, size)
    orders = torch.from_numpy(stream.permutations(size, epochs))
    return pad(orders, (0, -size % width), value=-1).view(-1, width)


def views_of(
    cohort: Cohort, at: Round, chosen: Int[Tensor, "k b"]
) -> Int[Tensor, "k b"] | None:
    """Draw a view for each record, the same whoever else is chosen.

    In secret: to those who know the draws, one record more in front of others would
    change the others' views, and a clipped sum by more than one record's gradient.
    """
    if cohort.views is None:
        return None
    drawn = torch.zeros_like(cohort.labels)
    for row, (client, size) in enumerate(
        zip(cohort.clients, cohort.sizes.tolist(), strict=True)
    ):
        drawn[row, :size] = _drawn_views(cohort.views, at.secret("views", client), size)
    return drawn.gather(1, chosen)


def _drawn_views(views: Tensor, stream: Stream, count: int) -> Int[Tensor, " count"]:
    return torch.from_numpy(stream.below(views.shape[2], count))


def poisson_batches(cohort: Cohort, at: Round, rate: float) -> Bool[Tensor, "k n"]:
    """Return which records each client's Poisson sample holds; padding never does.

    The coins are secret: sampling amplifies privacy against those who don't know them.
    """
    drawn = torch.zeros_like(cohort.mask)
    for row, (client, size) in enumerate(
        zip(cohort.clients, cohort.sizes.tolist(), strict=True)
    ):
        coins = at.secret("poisson", client).coins(rate, size)
        drawn[row, :size] = torch.from_numpy(coins)
    return drawn & cohort.mask


@dataclass(frozen=True)
class Batch:
    """What each client of a cohort takes in one step; short batches are padded.

    Attributes:
        features: Image features, [k, b, dim].
        labels: Class index of each record, [k, b].
        mask: False where padding stands; whatever it holds counts for nothing.
        tokens: Parts of pictures, where the records have them; read by the objective.
        words: What is asked and answered, [k, b, length], where they have that.
        crafted: Gradients of canaries; zero for other records.
    """

    features: Float[Tensor, "k b d"]
    labels: Int[Tensor, "k b"]
    mask: Bool[Tensor, "k b"]
    tokens: PictureTokens | None = None
    words: TokenSequences | None = None
    crafted: Float[Tensor, "k b tokens width"] | None = None

    @property
    def is_crafted(self) -> Bool[Tensor, "k b"]:
        """Which records are canaries in gradient space."""
        if self.crafted is None:
            return torch.zeros_like(self.mask)
        return self.crafted.flatten(2).any(dim=2) & self.mask

    @property
    def sizes(self) -> Int[Tensor, " k"]:
        """How many records each client took: not to be sent, nor shown."""
        return self.mask.sum(dim=1)

    def part(self, clients: slice | Int[Tensor, " some"], records: slice) -> "Batch":
        """Return some records of some clients."""
        some: dict[str, Any] = {
            name: None if held is None else held[clients, records]
            for name, held in vars(self).items()
        }
        return Batch(**some)


def pick_batch(
    cohort: Cohort,
    chosen: Int[Tensor, "k b"],
    mask: Tensor,
    views: Int[Tensor, "k b"] | None = None,
) -> Batch:
    """Return the records at ``chosen``, where the cohort's features are.

    ``views``: Which view of each picture; None is the picture itself.
    """
    device, crafted = cohort.features.device, None
    mask = mask.to(device)
    if cohort.crafted is not None:
        crafted = _picked(cohort.crafted, chosen) * mask[..., None, None]
    features = _picked(cohort.features, chosen)
    if cohort.views is not None and views is not None:
        places = views.to(device)[..., None, None].expand(
            *chosen.shape, 1, features.shape[2]
        )
        features = _picked(cohort.views, chosen).gather(2, places).squeeze(2)
    return Batch(
        features,
        _picked(cohort.labels, chosen),
        mask,
        None if cohort.tokens is None else _picked(cohort.tokens, chosen),
        None if cohort.words is None else _picked(cohort.words, chosen).to(device),
        crafted,
    )


def _picked(held: Any, chosen: Int[Tensor, "k b"]) -> Any:
    """Return what is held of the records at ``chosen``, from where it is held."""
    rows = torch.arange(len(chosen), device=held.device).unsqueeze(1)
    return held[rows, chosen.to(held.device)]


def with_canaries(
    losses: Float[Tensor, "k b"],
    contexts: Float[Tensor, "k tokens width"],
    batch: Batch,
) -> Float[Tensor, "k b"]:
    """Return the records' losses, those of canaries replaced.

    A canary in gradient space has a loss that is linear in the context, and 0 wherever
    the context is: its gradient is the one it was crafted with, and no mean of losses
    tells of it.
    """
    if batch.crafted is None:
        return losses
    linear = torch.einsum("kbtw,ktw->kb", batch.crafted, contexts - contexts.detach())
    return torch.where(batch.is_crafted, linear, losses)


Objective = Callable[[Stacked, Batch], Float[Tensor, " k"]]
"""From parameters and a batch to every client's loss, differentiable."""

Penalty = Callable[[Stacked], Float[Tensor, " k"]]
"""From parameters alone to a term of every client's loss; no record enters it."""


def gradients_of(
    objective: Objective, parameters: Stacked, batch: Batch
) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
    """Return each client's gradient by its own parameters, and its loss."""
    leaves = {n: t.detach().requires_grad_() for n, t in parameters.items()}
    with one_step():
        losses = objective(leaves, batch)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
    return dict(zip(leaves, gradients, strict=True)), losses.detach()


Gradients = Callable[
    [Objective, Stacked, Batch], tuple[dict[str, Tensor], Float[Tensor, " k"]]
]
"""How gradients are found; :func:`gradients_of` asks autograd."""


def in_parts(batch: Batch, size: int) -> Iterator[Batch]:
    """Yield a batch in parts of at most ``size`` records of each client."""
    for first in range(0, batch.mask.shape[1], size):
        yield batch.part(slice(None), slice(first, first + size))


def accumulated(size: int, weigh: Callable[[Batch], Float[Tensor, " k"]]) -> Gradients:
    """Return a way to find the same gradients in less memory, part by part.

    Args:
        size: Records of each client in a part.
        weigh: What a part's mean loss counts in the batch's: the same up to a factor
            as how many records, or tokens, it is a mean over.
    """

    def gradients(
        objective: Objective, parameters: Stacked, batch: Batch
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        whole = weigh(batch).clamp(min=1)
        total = {name: torch.zeros_like(t) for name, t in parameters.items()}
        loss = torch.zeros_like(whole, dtype=torch.float32)
        for part in in_parts(batch, size):
            share = weigh(part) / whole
            part_gradients, mean = gradients_of(objective, parameters, part)
            loss = loss + share * mean
            for name, gradient in part_gradients.items():
                total[name] += gradient * beside(share, gradient)
        return total, loss

    return gradients
