"""AdamW on many clients' parameters at once."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.core.tensors import Stacked
from privaudit.federated.batches import (
    Batches,
    Gradients,
    Objective,
    gradients_of,
    pick_batch,
)
from privaudit.federated.trainer import Cohort

BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, from a standing start.

    Source: Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019,
    algorithm 2.

    Attributes:
        learning_rate: Step size, above 0.
        weight_decay: Weight decay of AdamW, at least 0.
    """

    learning_rate: float
    weight_decay: float = 0.0

    def fit(
        self,
        cohort: Cohort,
        parameters: Stacked,
        batches: Batches,
        objective: Objective,
        gradients: Gradients = gradients_of,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        """Run the batches, and return each client's parameters and mean loss.

        A client whose batches have run out stands still while others go on.
        """
        state = {name: tensor.detach() for name, tensor in parameters.items()}
        moments = {
            name: (torch.zeros_like(t), torch.zeros_like(t))
            for name, t in state.items()
        }
        steps, total = torch.zeros(len(cohort)), torch.zeros(len(cohort))
        for chosen, mask in zip(batches.chosen, batches.mask, strict=True):
            active = mask.any(dim=1)
            steps = steps + active
            batch = pick_batch(cohort, chosen, mask)
            grads, loss = gradients(objective, state, batch)
            for name, gradient in grads.items():
                state[name], moments[name] = self._step(
                    state[name], gradient, moments[name], steps, active
                )
            total = total + loss * active
        return state, total / steps.clamp(min=1)

    def _step(
        self,
        parameter: Tensor,
        gradient: Tensor,
        moments: tuple[Tensor, Tensor],
        steps: Float[Tensor, " k"],
        active: Bool[Tensor, " k"],
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the parameter and its moments after a step of the active clients."""
        shape = (-1, *[1] * (gradient.ndim - 1))
        steps, moving = steps.clamp(min=1).view(shape), active.view(shape)
        first = torch.lerp(gradient, moments[0], BETAS[0])
        second = torch.lerp(gradient**2, moments[1], BETAS[1])
        mean = first / (1 - BETAS[0] ** steps)
        spread = (second / (1 - BETAS[1] ** steps)).sqrt() + EPSILON
        moved = parameter * (1 - self.learning_rate * self.weight_decay)
        moved = moved - self.learning_rate * mean / spread
        return torch.where(moving, moved, parameter), (
            torch.where(moving, first, moments[0]),
            torch.where(moving, second, moments[1]),
        )
