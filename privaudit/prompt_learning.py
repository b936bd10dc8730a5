"""What the prompt trainers share: batches, logits, loss, steps and queries.

All of it runs on a cohort: contexts and records carry a leading axis over clients, and
no client's numbers reach another's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.seeds import Seeds
from privaudit.tensors import Stacked, Tensors
from privaudit.trainer import (
    Claim,
    ClientId,
    Cohort,
    Events,
    Inbox,
    PublicTask,
    Records,
    Round,
    Signal,
    Signals,
)

CONTEXT_STD = 0.02  # CoOp's initial context is N(0, 0.02²)
QUERY_CHUNK = 1024


@dataclass(frozen=True)
class Batches:
    """Which records each client takes in each local step.

    Attributes:
        chosen: Positions in the padded cohort.
        mask: False where a client's batch is shorter than the longest, or empty.
    """

    chosen: Int[Tensor, "steps clients batch"]
    mask: Bool[Tensor, "steps clients batch"]


def start_context(task: PublicTask, seeds: Seeds, client: str = "") -> Tensor:
    """Return a random context [tokens, width], the same for equal seeds."""
    shape = (task.prompts.context_tokens, task.prompts.width)
    generator = seeds.generator("context", client=client)
    return torch.randn(shape, generator=generator) * CONTEXT_STD


def epochs_of_batches(
    cohort: Cohort, at: Round, *, epochs: int, batch_size: int
) -> Batches:
    """Shuffle each client's records anew for every epoch, and cut them into batches.

    Args:
        cohort: Who trains.
        at: Names the random streams, one for each client.
        epochs: Passes over the shard.
        batch_size: Records in a batch, or 0 for the whole shard at once.
    """
    sizes = [int(size) for size in cohort.sizes]
    plans = [
        _plan_epochs(size, epochs, batch_size, at.generator("batches", client))
        for client, size in zip(cohort.clients, sizes, strict=True)
    ]
    steps = max(len(plan) for plan in plans)
    width = max((len(batch) for plan in plans for batch in plan), default=1)
    chosen = torch.zeros(steps, len(plans), max(width, 1), dtype=torch.long)
    mask = torch.zeros_like(chosen, dtype=torch.bool)
    for row, plan in enumerate(plans):
        for step, batch in enumerate(plan):
            chosen[step, row, : len(batch)] = batch
            mask[step, row, : len(batch)] = True
    return Batches(chosen, mask)


def _plan_epochs(
    size: int, epochs: int, batch_size: int, generator: torch.Generator
) -> list[Tensor]:
    if size == 0:
        return []
    plan: list[Tensor] = []
    for _ in range(epochs):
        order = torch.randperm(size, generator=generator)
        plan.extend(order.split(batch_size or size))
    return plan


def poisson_batches(cohort: Cohort, at: Round, rate: float) -> Bool[Tensor, "k n"]:
    """Return which records each client's Poisson sample holds; padding never does."""
    longest = cohort.mask.shape[1]
    draws = torch.zeros(len(cohort), longest)
    for row, (client, size) in enumerate(
        zip(cohort.clients, cohort.sizes.tolist(), strict=True)
    ):
        generator = at.generator("poisson", client)
        draws[row, :size] = torch.rand(size, generator=generator)
    return (draws < rate) & cohort.mask


def pick_batch(
    cohort: Cohort, chosen: Int[Tensor, "k b"]
) -> tuple[Float[Tensor, "k b d"], Int[Tensor, "k b"]]:
    """Return the features and labels at ``chosen``."""
    rows = torch.arange(len(cohort)).unsqueeze(1)
    return cohort.features[rows, chosen], cohort.labels[rows, chosen]


def logits_of(
    task: PublicTask,
    text: Float[Tensor, "k classes d"],
    features: Float[Tensor, "k b d"],
) -> Float[Tensor, "k b classes"]:
    """Return scaled cosines of pictures and classes."""
    return task.logit_scale * torch.einsum("kbd,kcd->kbc", features, text)


def mean_losses(
    logits: Float[Tensor, "k b classes"],
    labels: Int[Tensor, "k b"],
    mask: Bool[Tensor, "k b"],
) -> Float[Tensor, " k"]:
    """Return each client's mean cross-entropy; 0 where a client has no record."""
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    losses = losses.view(labels.shape) * mask
    return losses.sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def train_contexts(
    task: PublicTask,
    cohort: Cohort,
    contexts: Float[Tensor, "k tokens width"],
    batches: Batches,
    *,
    learning_rate: float,
    momentum: float = 0.0,
) -> tuple[Float[Tensor, "k tokens width"], Float[Tensor, " k"]]:
    """Run SGD on each client's own context, and return it with the mean loss.

    A client whose batches have run out stands still while others go on.
    """
    velocity = torch.zeros_like(contexts)
    total, steps = torch.zeros(len(cohort)), torch.zeros(len(cohort))
    for chosen, mask in zip(batches.chosen, batches.mask, strict=True):
        active = mask.any(dim=1)
        gradient, loss = context_gradient(task, cohort, contexts, chosen, mask)
        velocity = torch.where(
            active[:, None, None], momentum * velocity + gradient, velocity
        )
        contexts = contexts - learning_rate * velocity * active[:, None, None]
        total, steps = total + loss * active, steps + active
    return contexts, total / steps.clamp(min=1)


def context_gradient(
    task: PublicTask,
    cohort: Cohort,
    contexts: Float[Tensor, "k tokens width"],
    chosen: Int[Tensor, "k b"],
    mask: Bool[Tensor, "k b"],
) -> tuple[Float[Tensor, "k tokens width"], Float[Tensor, " k"]]:
    """Return the gradient of each client's mean loss, and that loss."""
    features, labels = pick_batch(cohort, chosen)
    leaf = contexts.detach().requires_grad_()
    losses = mean_losses(logits_of(task, task.prompts(leaf), features), labels, mask)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return gradient, losses.detach()


@pydantic.dataclasses.dataclass(frozen=True)
class PromptTrainer:
    """What prompt trainers have in common unless they say otherwise."""

    aggregation: ClassVar[Literal["sum", "individual"]] = "sum"
    usual_rounds: ClassVar[int] = 10

    def start(self, task: PublicTask, seeds: Seeds) -> Tensors:
        """Return no state: the server has no part in it."""
        return {}

    def start_client(self, task: PublicTask, client: ClientId, seeds: Seeds) -> Tensors:
        """Return no state: nothing is kept between rounds."""
        return {}

    def broadcast(self, server: Tensors, client: ClientId) -> Tensors:
        """Send nothing."""
        return {}

    def aggregate(
        self, task: PublicTask, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Change nothing."""
        return server, ()

    def query(
        self,
        task: PublicTask,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({"log_probabilities"}),
    ) -> Iterator[Signals]:
        """Yield the log-probabilities of prompted CLIP.

        A model is a context, or ready text features where nothing was learned.
        """
        if "text" in models:
            return query_text(task, models["text"], records)
        with torch.no_grad():
            text = task.prompts(models["context"])
        return query_text(task, text, records)

    def claim(self, task: PublicTask) -> Claim:
        """Claim nothing: there is no privacy mechanism."""
        return Claim()


@pydantic.dataclasses.dataclass(frozen=True)
class LocalSgd(PromptTrainer):
    """A prompt trainer whose clients run epochs of SGD.

    The defaults suit the embedded model and small shards; on ViT-B/16 a rate of 0.001
    to 0.002, 5 epochs and batches of 32 are published. From about 0.002 on, full
    batches with momentum 0.9 are beyond stability on the embedded model: rounding
    errors grow, and another number of threads gives another model.

    Attributes:
        learning_rate: Above 0.
        epochs: Local passes over the shard in each round.
        batch_size: Records in a batch; 0 takes the whole shard at once.
        momentum: In [0, 1), started anew in each round.
    """

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.0005
    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=0)] = 0
    momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9

    def train(
        self,
        task: PublicTask,
        cohort: Cohort,
        contexts: Float[Tensor, "k tokens width"],
        at: Round,
    ) -> tuple[Float[Tensor, "k tokens width"], Float[Tensor, " k"]]:
        """Run the local epochs on each client's context, and return the mean loss."""
        batches = epochs_of_batches(
            cohort, at, epochs=self.epochs, batch_size=self.batch_size
        )
        return train_contexts(
            task,
            cohort,
            contexts,
            batches,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
        )


@torch.no_grad()
def query_text(
    task: PublicTask, text: Float[Tensor, "k classes d"], records: Records
) -> Iterator[Signals]:
    """Yield log-probabilities [models, chunk, classes] from text features."""
    for features in records.features.split(QUERY_CHUNK):
        logits = task.logit_scale * torch.einsum("nd,kcd->knc", features, text)
        yield {"log_probabilities": logits.log_softmax(dim=-1)}
