"""Prompt learning: logits, losses, local steps and queries.

All of it runs on a cohort: contexts and records carry a leading axis over clients, and
no client's numbers reach another's.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.devices import in_chunks
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import (
    Batch,
    Objective,
    Penalty,
    epochs_of_batches,
    with_canaries,
)
from privaudit.federation.trainer import (
    ANSWERS,
    BaseTrainer,
    Cohort,
    Records,
    Round,
    Signals,
    Task,
    Want,
)
from privaudit.tuning.optimiser import Optimised

CONTEXT_STD = 0.02  # CoOp's initial context is N(0, 0.02²)
QUERY_CHUNK = 1024


def start_context(task: Task, seeds: Seeds, client: str = "") -> Tensor:
    """Return a random context [tokens, width], the same for equal seeds."""
    shape = (task.prompts.context_tokens, task.prompts.width)
    return seeds.stream("context", client=client).normal_tensor(shape) * CONTEXT_STD


def logits_of(
    task: Task, text: Float[Tensor, "k classes d"], features: Float[Tensor, "k b d"]
) -> Float[Tensor, "k b classes"]:
    """Return scaled cosines of pictures and classes."""
    return task.logit_scale * torch.einsum("kbd,kcd->kbc", features, text)


def mean_losses(
    logits: Float[Tensor, "k b classes"],
    labels: Int[Tensor, "k b"],
    mask: Bool[Tensor, "k b"],
) -> Float[Tensor, " k"]:
    """Return each client's mean cross-entropy; 0 where a client has no record."""
    losses = record_losses(logits, labels) * mask
    return losses.sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def record_losses(
    logits: Float[Tensor, "k b classes"], labels: Int[Tensor, "k b"]
) -> Float[Tensor, "k b"]:
    """Return every record's cross-entropy."""
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape)


def context_losses(
    task: Task, contexts: Float[Tensor, "k tokens width"], batch: Batch
) -> Float[Tensor, "k b"]:
    """Return every record's cross-entropy under its client's context."""
    logits = logits_of(task, task.prompts(contexts), batch.features)
    return with_canaries(record_losses(logits, batch.labels), contexts, batch)


def prompt_losses(
    task: Task, contexts: Float[Tensor, "k tokens width"], batch: Batch
) -> Float[Tensor, " k"]:
    """Return each client's mean loss over its batch, with its own context."""
    losses = context_losses(task, contexts, batch) * batch.mask
    return losses.sum(dim=1) / batch.sizes.clamp(min=1)


@pydantic.dataclasses.dataclass(frozen=True)
class PromptTrainer(BaseTrainer):
    """A trainer whose models are prompts of CLIP's text tower."""

    prompt: ClassVar[str] = "context"

    def query(
        self, task: Task, models: Stacked, records: Records, want: Want = ANSWERS
    ) -> Iterator[Signals]:
        """Yield the log-probabilities of prompted CLIP.

        A model is a context, or ready text features where nothing was learned.
        """
        if "text" in models:
            return query_text(task, models["text"], records)
        return query_text(task, text_of(task, models["context"]), records)


@pydantic.dataclasses.dataclass(frozen=True)
class LocalSgd(Optimised, PromptTrainer):
    """A prompt trainer whose clients run epochs of SGD, or of another optimiser.

    The defaults suit the embedded model and small shards; on ViT-B/16 a rate of 0.001
    to 0.002, 5 epochs and batches of 32 are published. From about 0.002 on, full
    batches with momentum 0.9 are beyond stability on the embedded model: rounding
    errors grow, and another number of threads gives another model.

    Attributes:
        learning_rate: Step size, above 0.
        epochs: Local passes over the shard in each round.
        batch_size: Records in a batch; 0 takes the whole shard at once.
        momentum: Of SGD; the first beta of Adam and AdamW. In [0, 1).
    """

    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.0005
    epochs: Annotated[int, Field(ge=1)] = 50
    batch_size: Annotated[int, Field(ge=0)] = 0
    momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return a random context."""
        return {"context": start_context(task, seeds)}

    def train(
        self,
        task: Task,
        cohort: Cohort,
        contexts: Float[Tensor, "k tokens width"],
        at: Round,
        penalty: Penalty | None = None,
    ) -> tuple[Float[Tensor, "k tokens width"], Float[Tensor, " k"]]:
        """Run the local epochs on each client's context, and return the mean loss."""

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            losses = prompt_losses(task, parameters["context"], batch)
            return losses if penalty is None else losses + penalty(parameters)

        trained, loss = self.fit(task, cohort, {"context": contexts}, objective, at)
        return trained["context"], loss

    def fit(
        self,
        task: Task,
        cohort: Cohort,
        parameters: Stacked,
        objective: Objective,
        at: Round,
        learning_rate: Mapping[str, float] | None = None,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run the local epochs on any parameters, with one rate or one for each."""
        batches = epochs_of_batches(
            cohort, at, epochs=self.epochs, batch_size=self.batch_size
        )
        rates = learning_rate or self.learning_rate
        return self.optimise(task, cohort, parameters, batches, objective, rates, at)


def pair_texts(task: Task, prompts: Stacked) -> Float[Tensor, "k prompts classes d"]:
    """Return the text features of each client's "global" and "local" prompt."""
    both = torch.stack([prompts["global"], prompts["local"]], dim=1)
    texts = task.prompts(both.flatten(0, 1))
    return texts.view(*both.shape[:2], *texts.shape[1:])


@torch.no_grad()
def text_of(
    task: Task, contexts: Float[Tensor, "k tokens width"]
) -> Float[Tensor, "k classes d"]:
    """Return the text features of every class behind each context."""
    count = len(contexts)

    def features(chosen: Tensor) -> Tensor:
        return task.prompts(contexts[chosen.to(contexts.device)])

    return torch.cat(list(in_chunks(count, max(1, count), features)))


@torch.no_grad()
def query_text(
    task: Task, text: Float[Tensor, "k classes d"], records: Records
) -> Iterator[Signals]:
    """Yield log-probabilities [models, chunk, classes] from text features."""
    for features in records.features.split(QUERY_CHUNK):
        logits = task.logit_scale * torch.einsum("nd,kcd->knc", features, text)
        yield {"log_probabilities": logits.log_softmax(dim=-1)}
