"""Clipping of gradients: per record, or of a batch mean.

Only clipping per record bounds what one record changes by the clip norm. A clipped
batch mean moves by up to twice the clip norm when one of its records changes.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from privaudit.core.errors import ConfigError, TrainingError
from privaudit.core.tensors import beside


def clip_records(
    gradients: Mapping[str, Float[Tensor, "clients records ..."]],
    clip_norm: float,
    mask: Bool[Tensor, "clients records"] | None = None,
) -> dict[str, Float[Tensor, "clients records ..."]]:
    """Return per-record gradients of joint norm at most ``clip_norm``, not yet summed.

    A record's tensors are scaled together; adding or removing one then changes the sums
    over records by at most ``clip_norm`` in their joint norm.

    Source: Abadi et al., "Deep learning with differential privacy", CCS 2016,
    algorithm 1.

    Args:
        gradients: Of each record, by name.
        clip_norm: Largest joint norm, above 0; infinity clips nothing.
        mask: False for padded records, which contribute exactly 0 whatever they hold.

    Raises:
        ConfigError: ``clip_norm`` is not above 0, or there are no gradients.
        TrainingError: A gradient of a real record is not finite. Clipping cannot bound
            it, and dropping it would tell that it was there.
    """
    _check(gradients, clip_norm)
    if mask is not None:
        gradients = {
            name: torch.where(beside(mask, gradient), gradient, 0)
            for name, gradient in gradients.items()
        }
    _refuse_non_finite(gradients)
    norms = torch.stack([_norms(g, leading=2) for g in gradients.values()])
    factor = _factor(norms.norm(dim=0), clip_norm)
    return {name: g * beside(factor, g).to(g.dtype) for name, g in gradients.items()}


def clip_each(
    gradients: Mapping[str, Float[Tensor, "clients ..."]], clip_norm: float
) -> dict[str, Float[Tensor, "clients ..."]]:
    """Return each tensor clipped by itself to norm ``clip_norm``, per client.

    What the published code of DP-FPL does to the gradient of a batch's mean loss. One
    record can move each clipped tensor by 2 ``clip_norm``, and k tensors by
    2 sqrt(k) ``clip_norm``, however large the batch. Errors are those of
    :func:`clip_records`.
    """
    _check(gradients, clip_norm)
    _refuse_non_finite(gradients)
    return {
        name: g * beside(_factor(_norms(g, leading=1), clip_norm), g).to(g.dtype)
        for name, g in gradients.items()
    }


def reach_of_steps(
    steps: int,
    learning_rate: float,
    clip_norm: float,
    momentum: float = 0.0,
    pull: float = 0.0,
) -> float:
    """Return how far steps along clipped gradients lead from where they began, at most.

    SGD with v = momentum v + g + pull (p - start), p = p - learning_rate v, and |g| at
    most ``clip_norm``, whatever the records are. The recursion is linear: what a step
    adds is its gradient times a factor for the steps behind it, and the largest sum has
    all of these in one line. A pull to the start is no gradient of a record: it is not
    clipped, and draws back what records have moved, so that the reach is smaller.

    Args:
        steps: At least 0.
        learning_rate: Step size, above 0.
        clip_norm: Of each step's gradient, above 0.
        momentum: In [0, 1).
        pull: Of the proximal term pull / 2 |p - start|^2, at least 0; from about
            2 (1 + momentum) / learning_rate on, it throws p ever farther.

    Example:
        >>> round(reach_of_steps(3, 0.1, 10.0), 6)
        3.0
        >>> round(reach_of_steps(3, 0.1, 10.0, pull=5.0), 6)  # 1 + 1/2 + 1/4
        1.75
    """
    moved, speed, total = 0.0, 1.0, 0.0
    for _ in range(steps):
        moved -= learning_rate * speed
        speed = momentum * speed + pull * moved
        total += abs(moved)
    return clip_norm * total


def _norms(gradient: Tensor, leading: int) -> Tensor:
    # In float64: squares of large float32 gradients would overflow to infinity.
    flat = gradient.flatten(leading)
    return torch.linalg.vector_norm(flat, dim=-1, dtype=torch.float64)


def _factor(norms: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm / norms).clamp(max=1.0)  # a norm of 0 gives infinity, so 1


def _check(gradients: Mapping[str, Tensor], clip_norm: float) -> None:
    if not clip_norm > 0:
        raise ConfigError(
            f"A clip norm of {clip_norm:g} was requested. It must be above 0; infinity "
            "clips nothing."
        )
    if not gradients:
        raise ConfigError("There is no gradient to clip. Pass at least one tensor.")


def _refuse_non_finite(gradients: Mapping[str, Tensor]) -> None:
    for name, gradient in gradients.items():
        finite = torch.isfinite(gradient).flatten(1).all(dim=1)
        if not bool(finite.all()):
            clients = (~finite).nonzero().flatten().tolist()
            raise TrainingError(
                f"The gradient of {name!r} is not finite for client number {clients} "
                f"of {len(finite)} in the cohort, and no clipping can bound it. Lower "
                "the learning rate, or look for a broken record."
            )
