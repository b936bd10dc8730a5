"""FedPT for clients who may only ask the model: gradients from its answers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.devices import CPU
from privaudit.core.errors import ConfigError
from privaudit.core.seeds import Stream
from privaudit.core.tensors import Stacked
from privaudit.federation.batches import Batch, Gradients, Objective, gradients_of
from privaudit.federation.trainer import TRAINERS, Cohort, LocalResult, Round, Task
from privaudit.federation.uploads import weighted_upload
from privaudit.tuning.transformers.prompt_tuning import PromptTuner


@TRAINERS.register("fedpt-zeroth-order")
@dataclass(frozen=True)
class FedPTZerothOrder(PromptTuner):
    """FedPT with query access only: zeroth-order gradient estimates.

    What must be sent to the model with every query is what the PEFT method learns: a
    soft prompt stands in front of the input, and an interface that takes embedded input
    takes it. "prefix", "lora" and "p-tuning" run too, for an interface that takes keys
    and values, changes of layers, or embedded input. "full" is refused: who may hand in
    all weights has the model. ``PromptTuner.start`` draws what is learned,
    tuning/transformers/prompt_tuning.py; the server's mean is weighted by shard sizes:
    ``BaseTrainer.aggregate``, federation/trainer.py.

    Source: "Federated prompt tuning for efficient and privacy-preserving adaptation of
    foundation models", section 2.2, black-box scenarios: there for one number, here
    for all at once (see :func:`two_point`).

    Attributes:
        directions: In which each step looks, at two queries for each record. 0 asks for
            the gradient itself, as an interface might give it: for comparison.
        perturbation: How far it looks, in each number, in root mean square.
        models_at_once: At most so many differently prompted models run in one pass.
    """

    directions: Annotated[int, Field(ge=0)] = 16
    perturbation: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    models_at_once: Annotated[int, Field(ge=2)] = 256

    @model_validator(mode="after")
    def _check_mechanism(self) -> "FedPTZerothOrder":
        if self.peft_method == "full":
            raise ConfigError(
                'peft_method = "full" was requested, but clients of this trainer have no '
                'more than an interface to the model. Use "soft-prompt", or fedpt'
            )
        if self.tiers != "none":
            raise ConfigError(
                f"tiers = {self.tiers!r} was requested, but clients who only ask have "
                "no machines that differ. Leave it out"
            )
        if self.micro_batch:
            raise ConfigError(
                f"micro_batch = {self.micro_batch} was requested, but values need no "
                "memory for gradients. Lower models_at_once"
            )
        return self

    def local_update(
        self, task: Task, cohort: Cohort, received: Stacked, kept: Stacked, at: Round
    ) -> LocalResult:
        """Train what was received by estimates, and send it weighted by shard size."""
        trained, loss = self.train(task, cohort, received, at)
        return LocalResult(weighted_upload(cohort, trained), {}, loss)

    def gradients(self, task: Task, cohort: Cohort, at: Round) -> Gradients:
        """Return how gradients are found: each client has directions of its own."""
        if not self.directions:
            return gradients_of
        streams = [at.stream("directions", client) for client in cohort.clients]
        step, most = self.perturbation, self.models_at_once
        return two_point(self.directions, step, streams, most)

    def model_queries(self, records: int) -> int:
        """Return how many a client with so many records makes in a round.

        One query is one record, answered by one model; a gradient counts as one, too.
        """
        return self.epochs * records * max(1, 2 * self.directions)

    def single_step(self) -> Any:
        """Return the same trainer with one exact step on the whole shard.

        Whoever attacks may have the model itself.
        """
        return replace(self, epochs=1, batch_size=0, directions=0)


def two_point(
    directions: int, step: float, streams: Sequence[Stream], models_at_once: int = 256
) -> Gradients:
    """Return a way to estimate gradients from 2 ``directions`` values of the loss.

    The mean over directions d of (L(P + step d) - L(P - step d)) / (2 step) times d. d
    is uniform on the sphere of radius sqrt(n), n the numbers in all of P's tensors
    together. So E[d d'] is the identity, and the estimate is unbiased for the gradient
    of the loss smoothed over the ball of radius step sqrt(n): by the divergence
    theorem E[f(x + r u) u] = (r / n) times that gradient, for u on the unit sphere and
    r = step sqrt(n). Where the loss is quadratic, smoothing moves it by a constant, and
    the estimate is unbiased for the gradient itself. Gaussian directions would do for
    the loss smoothed by a Gaussian, with squares larger by (n + 2) / n.

    Each direction is a fresh draw for each client and step. The loss that comes back is
    the mean of all values: the loss at P itself costs a query more, and is not asked.

    Source: Nesterov and Spokoiny, "Random gradient-free minimization of convex
    functions", Foundations of Computational Mathematics 17 (2017), section 3; Duchi,
    Jordan, Wainwright and Wibisono, "Optimal rates for zero-order convex optimization:
    the power of two function evaluations", IEEE Transactions on Information Theory 61
    (2015), section 2, for the sphere.

    Args:
        directions: At least 1.
        step: Above 0: how far P is moved in each of its numbers, in root mean square.
            In float32 a value carries an error of some 1e-7, and the estimate that over
            ``step``.
        streams: One for each client of the cohort; they advance.
        models_at_once: At most so many models run in one pass, but one direction of
            each client at least.
    """

    def gradients(
        objective: Objective, parameters: Stacked, batch: Batch
    ) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
        drawn = [_draw(parameters, directions, stream) for stream in streams]
        total = {name: torch.zeros_like(t) for name, t in parameters.items()}
        loss = torch.zeros(len(streams), device=batch.mask.device)
        several = max(1, models_at_once // (2 * len(streams)))
        for first in range(0, directions, several):
            span = slice(first, first + several)
            along = {
                name: torch.stack([draw[name][span] for draw in drawn]).to(t)
                for name, t in parameters.items()
            }
            slopes, values = _slopes(objective, parameters, along, batch, step)
            loss += values / directions
            for name, slope in slopes.items():
                total[name] += slope / directions
        return total, loss

    return gradients


def _draw(
    parameters: Stacked, directions: int, stream: Stream
) -> dict[str, Float[Tensor, "directions ..."]]:
    """Draw one client's directions, all of radius sqrt(n)."""
    sizes = {name: tensor[0].numel() for name, tensor in parameters.items()}
    total = sum(sizes.values())
    flat = stream.normal_tensor((directions, total))
    flat = flat * (math.sqrt(total) / flat.norm(dim=1, keepdim=True))
    parts = flat.split(list(sizes.values()), dim=1)
    return {
        name: part.reshape(directions, *parameters[name].shape[1:])
        for name, part in zip(sizes, parts, strict=True)
    }


@torch.no_grad()
def _slopes(
    objective: Objective,
    parameters: Stacked,
    along: dict[str, Float[Tensor, "k some ..."]],
    batch: Batch,
    step: float,
) -> tuple[dict[str, Tensor], Float[Tensor, " k"]]:
    """Return the sum over directions of slope times direction, and of mean values."""
    directions = next(iter(along.values())).shape[1]
    moved = {}
    for name, tensor in parameters.items():
        here, off = tensor.unsqueeze(1), step * along[name]
        moved[name] = torch.cat([here + off, here - off], dim=1).flatten(0, 1)
    rows = torch.arange(len(batch.mask), device=CPU).repeat_interleave(2 * directions)
    values = objective(moved, batch.part(rows, slice(None))).view(-1, 2, directions)
    slopes = (values[:, 0] - values[:, 1]) / (2 * step)
    sums = {
        name: torch.einsum("ks,ks...->k...", slopes, d) for name, d in along.items()
    }
    return sums, values.mean(dim=1).sum(dim=1)
