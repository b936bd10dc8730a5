"""LoRA fine-tuning of a language model behind pictures."""

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federated.batches import Batch, epochs_of_batches
from privaudit.federated.query import UNTUNED
from privaudit.federated.trainer import Cohort, Records, Round, Signal, Signals, Task
from privaudit.models.interfaces import AnyTask, Tuning
from privaudit.models.token_table import TOKENS
from privaudit.tuning.optimiser import ADDED, Kind, Optimised
from privaudit.tuning.transformers.lora import changes_of, start_pairs, weight_changes
from privaudit.tuning.transformers.objectives import gradients_in_parts, objective_of


@pydantic.dataclasses.dataclass(frozen=True)
class LoraTrainer(Optimised):
    """A client runs an optimiser on low-rank changes of the language model's linear layers.

    The picture tower, the projector and the language model's own weights are frozen;
    the loss is on the answer only.

    Attributes:
        rank: LoRA rank, at least 1; published 8.
        lora_alpha: Scaling: the update is multiplied by lora_alpha / rank.
        learning_rate: Above 0. Published papers on models of 0.5 to 7 billion weights
            take 1e-4 to 3e-4; the embedded model, hundreds of times smaller and more,
            needs a larger one.
        weight_decay: At least 0. AdamW shrinks the parameters themselves, SGD and Adam
            add it to gradients.
        optimizer: "adamw", "adam" or "sgd".
        epochs: Local passes over the shard in each round.
        batch_size: Records in a batch; 0 takes the whole shard at once.
        micro_batch: Records whose gradient is found at once; a step adds up several, to
            the same numbers but for rounding. 0 takes the whole batch.
    """

    task: ClassVar[AnyTask] = "generation"
    usual_rounds: ClassVar[int] = 30
    image_tokens: ClassVar[bool] = True

    rank: Annotated[int, Field(ge=1)] = 8
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    optimizer: Annotated[Kind, ADDED] = "adamw"
    epochs: Annotated[int, Field(ge=1)] = 1
    batch_size: Annotated[int, Field(ge=0)] = 8
    micro_batch: Annotated[int, Field(ge=0), ADDED] = 0

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return one pair for each linear layer, the same for equal seeds."""
        stream = seeds.stream("adapters")
        return start_pairs(task.language.targets, self.rank, stream)

    def train(
        self, task: Task, cohort: Cohort, parameters: Stacked, at: Round
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run the local epochs, and return each client's parameters and mean loss."""

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            return objective_of(task).losses(self.tuning(task, parameters), batch)

        batches = epochs_of_batches(
            cohort, at, epochs=self.epochs, batch_size=self.batch_size
        )
        return self.optimise(
            task,
            cohort,
            parameters,
            batches,
            objective,
            self.learning_rate,
            at,
            gradients_in_parts(task, self.micro_batch),
        )

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
        yield from objective_of(task).query(tuning, count, records, want)
