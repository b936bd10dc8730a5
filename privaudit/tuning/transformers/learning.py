"""What trainers share that fine-tune a language model behind pictures with LoRA."""

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.datasets.dialogues import ANSWER
from privaudit.federated.base_trainer import BaseTrainer
from privaudit.federated.batches import Batch, epochs_of_batches
from privaudit.federated.trainer import (
    Cohort,
    Records,
    Round,
    Signal,
    Signals,
    Task,
)
from privaudit.federated.writing import UNTUNED
from privaudit.models.interfaces import LanguageModel, Tuning
from privaudit.models.token_table import TOKENS, token_signals
from privaudit.tuning.transformers.adamw import AdamW
from privaudit.tuning.transformers.lora import changes_of, start_pairs, weight_changes

LOGITS_AT_ONCE = 2**24  # numbers


def word_losses(
    language: LanguageModel, tuning: Tuning, batch: Batch
) -> Float[Tensor, " k"]:
    """Return each client's mean loss over the tokens of its answers.

    A client's tokens count alike, whichever record they are of.

    Args:
        language: The frozen model.
        tuning: What each client adds to it.
        batch: With tokens and words.
    """
    assert batch.tokens is not None
    assert batch.words is not None
    words = batch.words.trimmed()
    counted = (words.kinds == ANSWER) & batch.mask.unsqueeze(2)
    ahead = counted[..., 1:].flatten(0, 1).any(dim=0).nonzero().flatten()
    logits = language.logits(batch.tokens, words, tuning, ahead)
    wanted = words.ids[..., ahead + 1]
    losses = cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
    weights = counted[..., ahead + 1]
    total = (losses.view(wanted.shape) * weights).sum(dim=(1, 2))
    return total / weights.sum(dim=(1, 2)).clamp(min=1)


def answer_tokens(batch: Batch) -> Float[Tensor, " k"]:
    """Return over how many tokens each client's loss is a mean."""
    assert batch.words is not None
    counted = (batch.words.kinds == ANSWER) & batch.mask.unsqueeze(2)
    return counted[..., 1:].sum(dim=(1, 2)).float()


@pydantic.dataclasses.dataclass(frozen=True)
class LoraTrainer(BaseTrainer):
    """A client runs AdamW on low-rank changes of the language model's linear layers.

    The picture tower, the projector and the language model's own weights are frozen;
    the loss is on the answer only.

    Attributes:
        rank: Of every pair, at least 1; 8 is published.
        lora_alpha: The change is scaled by lora_alpha / rank.
        learning_rate: Above 0. Published papers on models of 0.5 to 7 billion weights
            take 1e-4 to 3e-4; the embedded model, hundreds of times smaller and more,
            needs a larger one.
        weight_decay: 0 or more.
        epochs: Local passes over the shard in each round.
        batch_size: Records in a batch; 0 takes the whole shard at once.
    """

    reads: ClassVar[Literal["classes", "words", "either"]] = "words"
    usual_rounds: ClassVar[int] = 30
    image_tokens: ClassVar[bool] = True

    rank: Annotated[int, Field(ge=1)] = 8
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    epochs: Annotated[int, Field(ge=1)] = 1
    batch_size: Annotated[int, Field(ge=0)] = 8

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return one pair for each linear layer, the same for equal seeds."""
        stream = seeds.stream("adapters")
        return start_pairs(task.language.targets, self.rank, stream)

    def train(
        self, task: Task, cohort: Cohort, parameters: Stacked, at: Round
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run the local epochs, and return each client's parameters and mean loss."""

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            return word_losses(task.language, self.tuning(task, parameters), batch)

        batches = epochs_of_batches(
            cohort, at, epochs=self.epochs, batch_size=self.batch_size
        )
        optimiser = AdamW(self.learning_rate, self.weight_decay)
        return optimiser.fit(cohort, parameters, batches, objective)

    def tuning(self, task: Task, models: Stacked) -> Tuning:
        """Return what each model adds to each linear layer."""
        if UNTUNED in models:
            return Tuning()
        return Tuning(changes_of(task.language.targets, models, self.scale))

    def weight_changes(self, task: Task, model: Tensors) -> Iterable[Tensor]:
        """Yield one model's change of each layer's weights."""
        return weight_changes(task.language.targets, model, self.scale)

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.lora_alpha / self.rank

    @torch.no_grad()
    def query(
        self,
        task: Task,
        models: Stacked,
        records: Records,
        want: frozenset[Signal] = frozenset({TOKENS}),
    ) -> Iterator[Signals]:
        """Yield statistics of every token, [models, chunk of records, positions]."""
        tuning = self.tuning(task, models)
        count = len(next(iter(models.values())))
        yield from query_tokens(task.language, tuning, count, records, want)


def query_tokens(
    language: LanguageModel,
    tuning: Tuning,
    count: int,
    records: Records,
    want: frozenset[Signal],
) -> Iterator[Signals]:
    """Yield statistics of every token under each of ``count`` models."""
    assert records.tokens is not None
    assert records.words is not None
    words = records.words.trimmed()
    of_one = count * words.length * language.vocabulary
    rows = max(1, LOGITS_AT_ONCE // max(1, of_one))
    for chosen in torch.arange(len(records)).split(rows):
        tokens, some = records.tokens[chosen], words[chosen].repeated(count)
        logits = language.logits(tokens.expand(count, *tokens.shape), some, tuning)
        yield token_signals(logits, some, want)
