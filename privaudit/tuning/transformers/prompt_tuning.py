"""Tuning of any transformer by a PEFT method, and the average of what clients send."""

import math
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Seeds
from privaudit.core.tensors import Stacked, Tensors
from privaudit.federation.batches import Batch, Gradients, Penalty, epochs_of_batches
from privaudit.federation.query import UNTUNED
from privaudit.federation.threat_models import View
from privaudit.federation.trainer import (
    ClientId,
    Cohort,
    Events,
    Inbox,
    LocalResult,
    Reconstruction,
    Round,
    Task,
)
from privaudit.federation.uploads import WEIGHT, weighted_upload
from privaudit.models.interfaces import AnyTask, Tuning
from privaudit.tuning.optimiser import Kind
from privaudit.tuning.peft_methods.registry import (
    PEFT_METHODS,
    MechanismOptions,
    PeftMethod,
)
from privaudit.tuning.transformers.objectives import (
    HEAD,
    TransformerTrainer,
    gradients_in_parts,
    objective_of,
)

TIERS = (0.25, 0.5, 1.0)
"""What part of the local epochs a low, a medium and a high machine manages."""


@pydantic.dataclasses.dataclass(frozen=True)
class PromptTuner(MechanismOptions, TransformerTrainer):
    """A client runs epochs of AdamW, or of another optimiser, on the parameters of a PEFT method.

    Every client's model is the server's; a classifier without class texts gets a
    linear head, which is trained and sent along.

    Attributes:
        peft_method: A name from ``privaudit list peft-methods``.
        optimizer: "adamw", "adam", or "sgd" as in the proposal.
        learning_rate: Step size, above 0.
        weight_decay: At least 0. AdamW shrinks the parameters themselves, SGD and Adam
            add it to gradients.
        epochs: Local passes over the shard in each round.
        batch_size: Records in a step; 0 takes the whole shard at once.
        micro_batch: Records whose gradient is found at once; a step adds up several.
            0 takes the whole batch.
        precision: "bfloat16" runs forward passes in training in that type, as autocast
            does, on CPU or GPU; parameters and sums stay in float32.
        tiers: "three" gives each client a machine by its name, the same in all rounds:
            a low, a medium or a high one, which manages a quarter, half or all of the
            epochs, rounded up.

    Raises:
        ConfigError: There are too few epochs for three tiers.
        UnknownNameError: There is no such PEFT method.
    """

    task: ClassVar[AnyTask] = "either"
    usual_rounds: ClassVar[int] = 20

    peft_method: str = "soft-prompt"
    optimizer: Kind = "adamw"
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    epochs: Annotated[int, Field(ge=1)] = 5
    batch_size: Annotated[int, Field(ge=0)] = 32
    micro_batch: Annotated[int, Field(ge=0)] = 0
    precision: Literal["float32", "bfloat16"] = "float32"
    tiers: Literal["none", "three"] = "none"

    def __post_init__(self) -> None:
        PEFT_METHODS.find(self.peft_method)
        if self.tiers == "three" and self.epochs < len(TIERS):
            raise ConfigError(
                f"Three tiers of machines were requested, but {self.epochs} epochs "
                f"have no three parts. Use at least {len(TIERS)} epochs."
            )

    def start(self, task: Task, seeds: Seeds) -> Tensors:
        """Return the PEFT method's parameters and a head, the same for equal seeds."""
        stream = seeds.stream("prompts")
        learned = self.learns.start(task.tunable, stream)
        return {**learned, **objective_of(task).start_head(stream)}

    def train(
        self,
        task: Task,
        cohort: Cohort,
        parameters: Stacked,
        at: Round,
        penalty: Penalty | None = None,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run the local epochs, and return each client's parameters and mean loss.

        ``penalty`` is what is added to the loss, as FedProx does.
        """
        epochs = [self.epochs_of(client) for client in cohort.clients]
        batches = epochs_of_batches(
            cohort, at, epochs=epochs, batch_size=self.batch_size
        )
        gradients = self.gradients(task, cohort, at)

        def objective(parameters: Stacked, batch: Batch) -> Tensor:
            losses = self.losses(task, parameters, batch)
            return losses if penalty is None else losses + penalty(parameters)

        return self.optimise(
            task, cohort, parameters, batches, objective, self.learning_rate, at,
            gradients,
        )  # fmt: skip

    def epochs_of(self, client: ClientId) -> int:
        """Return the epochs that a client's machine manages in a round.

        Which machine a client has follows from its name, so everybody knows it: an
        adversary's stand-ins, "shadow-3 of client-0" say, have the same one.
        """
        if self.tiers == "none":
            return self.epochs
        name = client.rpartition("/")[2].rpartition(" of ")[2]
        share = TIERS[sha256(name.encode()).digest()[0] % len(TIERS)]
        return math.ceil(self.epochs * share)

    def gradients(self, task: Task, cohort: Cohort, at: Round) -> Gradients:
        """Return how gradients are found: at once, or part by part."""
        return gradients_in_parts(task, self.micro_batch)

    def losses(
        self, task: Task, parameters: Stacked, batch: Batch
    ) -> Float[Tensor, " k"]:
        """Return each client's mean loss over its records, or its answers' tokens."""
        tuning = self.tuning(task, parameters)
        device, half = batch.features.device.type, self.precision == "bfloat16"
        with torch.autocast(device, torch.bfloat16, enabled=half):
            return objective_of(task).losses(tuning, batch)

    def tuning(self, task: Task, models: Stacked) -> Tuning:
        """Return what each model adds to the frozen one."""
        if UNTUNED in models:
            return Tuning()
        head = {n.removeprefix("head."): t for n, t in models.items() if n in HEAD}
        learned = {n: t for n, t in models.items() if n not in HEAD}
        return replace(self.learns.tuning(task.tunable, learned), head=head)

    def weight_changes(self, task: Task, model: Tensors) -> Iterable[Tensor]:
        """Yield one model's parameters: they are what is compared with another's."""
        return model.values()

    @property
    def learns(self) -> PeftMethod:
        """The PEFT method with its parameters."""
        return PEFT_METHODS.find(self.peft_method)(self)


@pydantic.dataclasses.dataclass(frozen=True)
class AveragedTuner(PromptTuner):
    """A tuner whose server averages what clients trained, or by how much that moved.

    Attributes:
        sends: "parameters", or their "deltas": by how much training moved them. A
            server that sent the one can tell the other, so neither hides more.
    """

    sends: Literal["parameters", "deltas"] = "parameters"

    def penalty(self, received: Stacked) -> Penalty | None:
        """Return what is added to the loss beside the records'; by default nothing."""
        return None

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what was received, and send it or its deltas, weighted by shard size."""
        penalty = self.penalty(received)
        trained, loss = self.train(task, cohort, received, at, penalty)
        if self.sends == "deltas":
            trained = {name: t - received[name] for name, t in trained.items()}
        return LocalResult(weighted_upload(cohort, trained), {}, loss)

    def aggregate(
        self, task: Task, server: Tensors, inbox: Inbox, at: Round
    ) -> tuple[Tensors, Events]:
        """Return the mean of what clients trained, weighted by shard sizes."""
        means, events = super().aggregate(task, server, inbox, at)
        if self.sends == "parameters" or means is server:
            return means, events
        return {name: t + means[name] for name, t in server.items()}, events

    def rebuild(self, task: Task, view: View, client: ClientId) -> Reconstruction:
        """Return what the client last trained where it is seen, else the average."""
        reconstructed = super().rebuild(task, view, client)
        if self.sends == "parameters" or not view.sees_updates_of(client):
            return reconstructed
        last = view.updates_of(client)[-1]
        if not last.tensors[WEIGHT] > 0:
            return reconstructed
        down = {m.round: m.tensors for m in view.broadcasts_to(client)}[last.round]
        return Reconstruction(
            {name: t + down[name] for name, t in reconstructed.model.items()}
        )
