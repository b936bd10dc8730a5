"""SGD, Adam and AdamW on many clients' parameters at once, and their learning rates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pydantic.dataclasses
import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from privaudit.core.devices import here, moved
from privaudit.core.errors import ConfigError
from privaudit.core.parameters import LATER
from privaudit.core.tensors import Stacked, beside
from privaudit.federation.batches import (
    Batches,
    Gradients,
    Objective,
    Penalty,
    gradients_of,
)
from privaudit.federation.trainer import BaseTrainer, Cohort, Round, Task

ADDED = Field(json_schema_extra=LATER)
Kind = Literal["sgd", "adam", "adamw"]
Rates = float | Mapping[str, float]  # of all parameters, or of each by name
SECOND_BETA, EPSILON = 0.999, 1e-8  # of Adam, as in torch.optim
VELOCITY, SQUARE, STEPS = " velocity", " square", " steps"
"""After a parameter's name: of its running gradient, its square's, and of its steps."""


@dataclass(frozen=True)
class Optimiser:
    """One step of SGD, Adam or AdamW; what it remembers is handed in and comes back.

    As torch.optim's of the same name: SGD and Adam add ``weight_decay`` times the
    parameter to its gradient, AdamW shrinks the parameter itself.

    Source: Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015,
    algorithm 1; Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019,
    algorithm 2.

    Attributes:
        kind: "sgd", "adam" or "adamw".
        momentum: Of SGD, without dampening; Adam's first beta.
        weight_decay: At least 0.
    """

    kind: Kind = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def at_rest(self, parameters: Stacked) -> dict[str, Tensor]:
        """Return what is remembered of one model before its first step."""
        slots: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            if self.kind != "sgd" or self.momentum:
                slots[name + VELOCITY] = torch.zeros_like(parameter)
            if self.kind != "sgd":
                slots[name + SQUARE] = torch.zeros_like(parameter)
                slots[name + STEPS] = torch.zeros(())
        return slots

    def step(
        self,
        parameters: Stacked,
        gradients: Stacked,
        slots: Stacked,
        rates: Rates,
        active: Bool[Tensor, " k"] | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the parameters after a step, and what is remembered of it.

        Args:
            parameters: Those without a gradient stand still.
            gradients: By some or all of them.
            slots: What was remembered; what is missing is at rest.
            rates: Step size, at least 0.
            active: Which clients move, where parameters are stacked; None is one model.
        """
        moved, after = dict(parameters), dict[str, Tensor]()
        for name, gradient in gradients.items():
            rate = rates[name] if isinstance(rates, Mapping) else rates
            before = {
                slot: slots[name + slot]
                for slot in (VELOCITY, SQUARE, STEPS)
                if name + slot in slots
            }
            value, new = self._moved(parameters[name], gradient, before, rate, active)
            if active is not None:
                moving = beside(active, gradient)
                value = torch.where(moving, value, parameters[name])
            moved[name] = value
            after |= {name + slot: tensor for slot, tensor in new.items()}
        return moved, after

    def _moved(
        self,
        parameter: Tensor,
        gradient: Tensor,
        before: Mapping[str, Tensor],
        rate: float,
        active: Bool[Tensor, " k"] | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return one parameter and its slots; only those who are active remember."""
        if self.weight_decay and self.kind != "adamw":
            gradient = gradient + self.weight_decay * parameter
        if self.kind == "sgd" and not self.momentum:
            return parameter - rate * gradient, {}
        whose = torch.ones((), dtype=torch.bool) if active is None else active
        moving = beside(whose, gradient)
        still = torch.zeros_like(gradient)
        velocity = before.get(VELOCITY, still)
        if self.kind == "sgd":
            faster = self.momentum * velocity + gradient
            return parameter - rate * faster, {
                VELOCITY: torch.where(moving, faster, velocity)
            }
        square = before.get(SQUARE, still)
        steps = before.get(STEPS, torch.zeros_like(whose, dtype=torch.float32)) + whose
        count = beside(steps.clamp(min=1), gradient)
        first = torch.lerp(gradient, velocity, self.momentum)
        second = torch.lerp(gradient**2, square, SECOND_BETA)
        mean = first / (1 - self.momentum**count)
        spread = (second / (1 - SECOND_BETA**count)).sqrt() + EPSILON
        if self.kind == "adamw":
            parameter = parameter * (1 - rate * self.weight_decay)
        return parameter - rate * mean / spread, {
            VELOCITY: torch.where(moving, first, velocity),
            SQUARE: torch.where(moving, second, square),
            STEPS: steps,
        }


def fit(
    cohort: Cohort,
    parameters: Stacked,
    batches: Batches,
    objective: Objective,
    optimiser: Optimiser,
    rates: Rates,
    *,
    gradients: Gradients = gradients_of,
    slots: dict[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
    """Run the batches, and return each client's parameters and mean loss.

    A client whose batches have run out stands still while others go on.

    ``objective`` is minimised, and no client's loss may depend on another's numbers.
    ``slots`` is what is remembered of steps before these, and then of these; None
    begins at rest and forgets.
    """
    state = {name: tensor.detach() for name, tensor in parameters.items()}
    memory = {} if slots is None else slots
    total, steps = torch.zeros(len(cohort)), torch.zeros(len(cohort))
    for batch in batches.of(cohort):
        active = batch.mask.any(dim=1)
        grads, loss = gradients(objective, state, batch)
        state, remembered = optimiser.step(state, grads, memory, rates, active)
        memory.update(remembered)
        total, steps = total + loss * active, steps + active
    return state, total / steps.clamp(min=1)


def pull(
    parameter: Float[Tensor, "k ..."], anchor: Float[Tensor, "k ..."], strength: float
) -> Float[Tensor, " k"]:
    """Return strength / 2 * |parameter - anchor|^2, whose gradient leads to the anchor.

    The parameter must not be detached: without a gradient the term changes nothing.
    """
    return strength / 2 * (parameter - anchor).square().flatten(1).sum(dim=1)


def pull_to(anchors: Stacked, strength: float) -> Penalty:
    """Return the proximal term of FedProx and FedAMP, summed over all parameters.

    No gradient reaches the anchors. A strength of 0 leaves plain training; steps
    diverge from about 2 (1 + momentum) / learning rate on.
    """
    fixed = {name: tensor.detach() for name, tensor in anchors.items()}

    def penalty(parameters: Stacked) -> Float[Tensor, " k"]:
        pulls = [pull(parameters[name], fixed[name], strength) for name in fixed]
        return torch.stack(pulls).sum(dim=0)

    return penalty


@pydantic.dataclasses.dataclass(frozen=True)
class Optimised(BaseTrainer):
    """A trainer that learns by gradients: its optimiser and the rate's schedule.

    Attributes:
        optimizer: "sgd", "adam" or "adamw", as in torch.optim.
        momentum: Of SGD; the first beta of Adam and AdamW. In [0, 1). None is 0 for
            SGD and 0.9 for the others.
        weight_decay: At least 0. SGD and Adam add it to gradients, AdamW shrinks the
            parameters themselves.
        schedule: Learning rate over the federation's rounds: "constant", or "cosine":
            in round t of T, after w rounds of warm-up, the rate times
            (1 + cos(pi (t - w) / (T - w))) / 2. It is the same in all steps of a round.
        warmup_rounds: Rounds in which the rate rises in equal steps to its full value.
        optimizer_state: "new": momentum and Adam's means begin anew in each round.
            "kept": a client goes on with its own of the round it last took part in;
            they stay with it.
    """

    optimizer: Annotated[Kind, ADDED] = "sgd"
    momentum: Annotated[float | None, Field(ge=0, lt=1), ADDED] = None
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False), ADDED] = 0.0
    schedule: Annotated[Literal["constant", "cosine"], ADDED] = "constant"
    warmup_rounds: Annotated[int, Field(ge=0), ADDED] = 0
    optimizer_state: Annotated[Literal["new", "kept"], ADDED] = "new"

    @property
    def optimiser(self) -> Optimiser:
        """The optimiser of local training."""
        momentum = self.momentum
        if momentum is None:
            momentum = 0.0 if self.optimizer == "sgd" else 0.9
        return Optimiser(self.optimizer, momentum, self.weight_decay)

    def rate_share(self, task: Task, index: int) -> float:
        """Return what part of the learning rate a round has, in [0, 1]."""
        begun, length = index - self.warmup_rounds, task.rounds - self.warmup_rounds
        if begun < 0:
            return (index + 1) / self.warmup_rounds
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * min(1.0, begun / max(1, length))))

    def slots(self, at: Round) -> dict[str, Tensor] | None:
        """Return where clients remember their steps across rounds; None if nowhere."""
        if self.optimizer_state == "new" or at.slots is None:
            return None
        at.slots.update(moved(at.slots, here()))
        return at.slots

    def optimise(
        self,
        task: Task,
        cohort: Cohort,
        parameters: Stacked,
        batches: Batches,
        objective: Objective,
        rates: Rates,
        at: Round,
        gradients: Gradients = gradients_of,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run given batches at the round's rates; return parameters and mean loss."""
        share = self.rate_share(task, at.index)
        rates = (
            {name: share * rate for name, rate in rates.items()}
            if isinstance(rates, Mapping)
            else share * rates
        )
        return fit(
            cohort, parameters, batches, objective, self.optimiser, rates,
            gradients=gradients, slots=self.slots(at),
        )  # fmt: skip

    def refuse(self, names: tuple[str, ...], where: str) -> None:
        """Refuse parameters that differ from their defaults.

        ``where`` says what they do not go with, and why.
        """
        usual = {field.name: field.default for field in fields(self)}
        for name in names:
            if getattr(self, name) != usual[name]:
                raise ConfigError(
                    f"{name} = {getattr(self, name)!r} was requested {where}. Leave "
                    "it out"
                )


SETTINGS = tuple(field.name for field in fields(Optimised))
ALL_BUT_MOMENTUM = tuple(name for name in SETTINGS if name != "momentum")
