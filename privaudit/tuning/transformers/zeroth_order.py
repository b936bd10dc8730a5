"""Gradients from values alone: for clients who may ask a model, and nothing more."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.core.devices import CPU
from privaudit.core.streams import Stream
from privaudit.core.tensors import Stacked
from privaudit.federated.batches import Batch, Gradients, Objective


def two_point(
    directions: int,
    step: float,
    streams: Sequence[Stream],
    models_at_once: int = 256,
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
    values = objective(moved, _repeated(batch, 2 * directions)).view(-1, 2, directions)
    slopes = (values[:, 0] - values[:, 1]) / (2 * step)
    sums = {
        name: torch.einsum("ks,ks...->k...", slopes, d) for name, d in along.items()
    }
    return sums, values.mean(dim=1).sum(dim=1)


def _repeated(batch: Batch, times: int) -> Batch:
    """Return a batch in which each client stands so often, one behind the other."""
    rows = torch.arange(len(batch.mask), device=CPU).repeat_interleave(times)
    row = rows.to(batch.mask.device)
    return Batch(
        batch.features[row],
        batch.labels[row],
        batch.mask[row],
        None if batch.tokens is None else batch.tokens[rows.to(batch.tokens.device)],
        None if batch.words is None else batch.words[row],
        None if batch.crafted is None else batch.crafted[row],
    )
