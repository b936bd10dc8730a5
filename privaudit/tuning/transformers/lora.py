"""Low-rank changes to linear layers, stacked over models, and trainers that learn them.

A layer's pair is called ``NAME.A`` [k, rank, inputs] and ``NAME.B`` [k, outputs, rank];
the change is B A x times a scale. FedPara's second pair is ``NAME.A2`` and ``NAME.B2``.

Source: Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022,
section 4.1; Hyeon-Woo, Ye-Bin, Oh, "FedPara: low-rank Hadamard product for
communication-efficient federated learning", ICLR 2022, section 2.3.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, ClassVar

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds, Stream
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import Batch, epochs_of_batches
from privaudit.federation.query import UNTUNED
from privaudit.federation.trainer import Cohort, Round, Task
from privaudit.models.interfaces import AnyTask, Change, TunableLayer, Tuning
from privaudit.tuning.optimiser import ADDED, Kind
from privaudit.tuning.transformers.objectives import (
    TransformerTrainer,
    gradients_in_parts,
    objective_of,
)

Targets = Mapping[str, TunableLayer]


def start_pairs(
    targets: Targets, rank: int, stream: Stream, suffix: str = ""
) -> dict[str, Tensor]:
    """Return A drawn from U(-1/√inputs, 1/√inputs), and B of zeros, for each layer.

    So that nothing is changed before the first step.
    """
    pairs: dict[str, Tensor] = {}
    for name, target in targets.items():
        draw = stream.uniform_tensor((rank, target.inputs))
        pairs[f"{name}.A{suffix}"] = (2 * draw - 1) * target.inputs**-0.5
        pairs[f"{name}.B{suffix}"] = torch.zeros(target.outputs, rank)
    return pairs


def factor_of(name: str) -> str:
    """Return which factor a tensor is: "A", "B", "A2" or "B2"."""
    return name.rpartition(".")[2]


def layer_of(targets: Targets, name: str) -> int:
    """Return the transformer layer that a tensor belongs to."""
    return targets[name.rpartition(".")[0]].layer


def changes_of(targets: Targets, models: Stacked, scale: float) -> dict[str, Change]:
    """Return what each model adds to each layer.

    Raises:
        ConfigError: A layer has no pair: it would silently be as it was.
    """
    lacking = [name for name in targets if f"{name}.A" not in models]
    if lacking:
        raise ConfigError(
            f"A model has no adapters for {len(lacking)} of {len(targets)} layers, "
            f"such as {lacking[0]}. Give all of them."
        )
    return {name: _change(models, name, scale) for name in targets}


def _change(models: Stacked, name: str, scale: float) -> Change:
    down, up = models[f"{name}.A"], models[f"{name}.B"]
    if f"{name}.A2" in models:
        weight = _hadamard(models, name) * scale
        return lambda x: x @ weight.mT
    return lambda x: (scale * (x @ down.mT)) @ up.mT  # few numbers are scaled


def _hadamard(models: Stacked, name: str) -> Float[Tensor, "k outputs inputs"]:
    """Return (B A) ∘ (1 + B2 A2).

    With B2 = 0 that is the first pair alone. Without the 1 and with B = 0 or B2 = 0 no
    gradient would ever flow.
    """
    shared = models[f"{name}.B"] @ models[f"{name}.A"]
    return shared * (1 + models[f"{name}.B2"] @ models[f"{name}.A2"])


def weight_changes(
    targets: Targets, model: Tensors, scale: float
) -> Iterable[Float[Tensor, "outputs inputs"]]:
    """Yield one model's change of each layer's weights; zeros for no model."""
    stacked = {name: tensor.unsqueeze(0) for name, tensor in model.items()}
    for name, target in targets.items():
        if f"{name}.A2" in stacked:
            yield scale * _hadamard(stacked, name)[0]
        elif stacked:
            yield scale * (model[f"{name}.B"] @ model[f"{name}.A"])
        else:
            yield torch.zeros(target.outputs, target.inputs)


def chosen(tensors: Tensors, keep: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return the tensors whose names are to be kept."""
    return {name: tensor for name, tensor in tensors.items() if keep(name)}


@pydantic.dataclasses.dataclass(frozen=True)
class LoraTrainer(TransformerTrainer):
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
