"""Low-rank factors of a prompt, and its gradient rebuilt from theirs.

Source: Tran et al., "Privacy-preserving personalized federated prompt learning for
multimodal large language models" (DP-FPL), ICLR 2025, section 3.2 and equation 4; after
Yu et al., "Large scale private learning via low-rank reparametrization", ICML 2021.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from privaudit.errors import ConfigError

Kind = Literal["both", "left"]
Variant = Literal["equation-4", "published-code"]

PUBLISHED_DIVISOR = 10.0  # the published code divides both factors' gradients by it


@dataclass(frozen=True)
class Factors:
    """A prompt as ``u @ v + residual``.

    Attributes:
        u: Orthonormal columns.
        v: Orthonormal rows (kind "both"), or ``u.T @ prompt`` (kind "left").
        residual: What is left; a constant in training.
    """

    u: Float[Tensor, "*batch tokens rank"]
    v: Float[Tensor, "*batch rank width"]
    residual: Float[Tensor, "*batch tokens width"]


def factorize(
    prompt: Float[Tensor, "*batch tokens width"],
    start: Float[Tensor, "*batch width rank"],
    kind: Kind = "both",
) -> Factors:
    """Return the factors that one power iteration from ``start`` finds.

    u = orth(prompt @ start). Kind "both" is the published one: v = orth(prompt.T @
    u).T, so that all singular values of ``u @ v`` are 1 and it approximates the
    prompt's row and column spaces, not the prompt. Kind "left" takes v = u.T @ prompt,
    which makes ``u @ v`` the best approximation within those columns. A zero or
    rank-deficient prompt gives finite, orthonormal factors all the same: the basis is
    completed.

    Args:
        prompt: The local prompt, one per leading index.
        start: Draws from N(0, 1).
        kind: Which of the two factorizations.

    Raises:
        ConfigError: The rank exceeds the number of tokens or the width.
    """
    rank, available = start.shape[-1], min(prompt.shape[-2:])
    if rank > available:
        raise ConfigError(
            f"A factorization of rank {rank} was asked for, and the prompt has "
            f"{prompt.shape[-2]} tokens of width {prompt.shape[-1]}. Take a rank of at "
            f'most {available}, or rank "full".'
        )
    u = orthonormalize(prompt @ start)
    back = prompt.mT @ u
    v = orthonormalize(back).mT if kind == "both" else back.mT
    return Factors(u, v, prompt - u @ v)


def orthonormalize(
    columns: Float[Tensor, "*batch n rank"],
) -> Float[Tensor, "*batch n rank"]:
    """Return an orthonormal basis whose first j columns span the first j given ones.

    As by Gram-Schmidt, no sign is flipped: the first one is the first column,
    normalised.
    A column that adds nothing new is replaced by the unit vector farthest from the
    basis so far, so that the result depends on the columns and not on their rounding.
    """
    basis, triangle = torch.linalg.qr(columns)
    diagonal = triangle.diagonal(dim1=-2, dim2=-1)
    basis = basis * torch.where(diagonal < 0, -1, 1).unsqueeze(-2)
    adds_nothing = diagonal.abs() <= _tolerance(columns) * columns.norm(dim=-2)
    incomplete = adds_nothing.any(dim=-1)[..., None, None]
    if bool(incomplete.any()):
        basis = torch.where(incomplete, _complete(columns), basis)
    return basis


def reconstruct_gradient(
    gradient_u: Float[Tensor, "*batch tokens rank"],
    gradient_v: Float[Tensor, "*batch rank width"],
    u: Float[Tensor, "*batch tokens rank"],
    v: Float[Tensor, "*batch rank width"],
    kind: Kind = "both",
    variant: Variant = "equation-4",
) -> Float[Tensor, "*batch tokens width"]:
    """Return the prompt's gradient, rebuilt from those of its factors.

    Equation 4: g_u v + u g_v - u u.T g_u v. For factors' gradients without noise it
    equals g - (I - u u.T) g (I - v+ v), the projection of the prompt's gradient g onto
    what u and v span. Of a v that is not orthonormal (kind "left") this takes
    g_u (v v.T)+ in place of g_u, with the pseudo-inverse, so that a zero prompt is no
    trouble; where v has small singular values, that amplifies noise in g_u.

    Args:
        gradient_u: Loss gradient by u, with or without noise.
        gradient_v: Loss gradient by v.
        u: Orthonormal columns.
        v: The other factor.
        kind: How :func:`factorize` made v.
        variant: "published-code" *adds* the last term and divides by 10: the published
            code does, and the result is no projection.

    Raises:
        ConfigError: "published-code" with kind "left": that code has no such kind.
    """
    if variant == "published-code" and kind == "left":
        raise ConfigError(
            'The published code was asked for with factorization "left", and it knows '
            '"both" only. Take "both", or variant "equation-4".'
        )
    if kind == "left":
        gradient_u = gradient_u @ torch.linalg.pinv(v @ v.mT, hermitian=True)
    by_u, by_v = gradient_u @ v, u @ gradient_v
    overlap = u @ (u.mT @ by_u)
    if variant == "published-code":
        return (by_u + by_v + overlap) / PUBLISHED_DIVISOR
    return by_u + by_v - overlap


def _complete(
    columns: Float[Tensor, "*batch n rank"],
) -> Float[Tensor, "*batch n rank"]:
    """Orthonormalize by Gram-Schmidt: slower, but replaces columns on its way."""
    basis = columns.new_zeros(*columns.shape[:-1], 0)
    for column in columns.unbind(-1):
        basis = torch.cat([basis, _next_direction(basis, column).unsqueeze(-1)], -1)
    return basis


def _next_direction(
    basis: Float[Tensor, "*batch n k"], column: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n"]:
    rest = _project_out(basis, column)
    length = column.norm(dim=-1, keepdim=True)
    is_new = rest.norm(dim=-1, keepdim=True) > _tolerance(column) * length
    farthest = (1 - basis.square().sum(-1)).argmax(-1)
    unit = torch.nn.functional.one_hot(farthest, column.shape[-1]).to(column)
    rest = torch.where(is_new, rest, _project_out(basis, unit))
    # Normalised before the second pass: a small remainder would carry its rounding.
    rest = _project_out(basis, rest / rest.norm(dim=-1, keepdim=True))
    return rest / rest.norm(dim=-1, keepdim=True)


def _project_out(
    basis: Float[Tensor, "*batch n k"], column: Float[Tensor, "*batch n"]
) -> Float[Tensor, "*batch n"]:
    coefficients = basis.mT @ column.unsqueeze(-1)
    return column - (basis @ coefficients).squeeze(-1)


def _tolerance(columns: Tensor) -> float:
    """Return below which share of a column's length the rest of it is rounding."""
    return 100 * torch.finfo(columns.dtype).eps
