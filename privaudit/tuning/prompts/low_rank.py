"""A cohort's local prompts in low-rank factors, and what their gradients keep."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.federation.trainer import Cohort, Round
from privaudit.tuning.prompts.learning import CONTEXT_STD

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
        start: Draws from N(0, 1); the rank is at most the tokens and the width.
        kind: Which of the two factorizations.
    """
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
    if bool(incomplete.any()):  # by Gram-Schmidt: slower, but replaces on its way
        complete = columns.new_zeros(*columns.shape[:-1], 0)
        for column in columns.unbind(-1):
            direction = _next_direction(complete, column).unsqueeze(-1)
            complete = torch.cat([complete, direction], -1)
        basis = torch.where(incomplete, complete, basis)
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
        v: As :func:`factorize` made it, by ``kind``.
        kind: Of the factorization: "both" or "left".
        variant: "published-code" *adds* the last term and divides by 10: the published
            code does, and the result is no projection. It knows kind "both" only.
    """
    if kind == "left":
        gradient_u = gradient_u @ torch.linalg.pinv(v @ v.mT, hermitian=True)
    by_u, by_v = gradient_u @ v, u @ gradient_v
    overlap = u @ (u.mT @ by_u)
    if variant == "published-code":
        return (by_u + by_v + overlap) / PUBLISHED_DIVISOR
    return by_u + by_v - overlap


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


Rank = Annotated[int, Field(ge=1)] | Literal["full"]


def draw_factors(
    local: Float[Tensor, "k tokens width"],
    rank: Rank,
    kind: Kind,
    cohort: Cohort,
    at: Round,
) -> Factors | None:
    """Factorise each client's prompt from a random start of its own.

    None at full rank, where the prompt itself is trained. A rank above the prompt's own
    is taken as that: u or v then spans everything, and no more can be asked.
    """
    if rank == "full":
        return None
    tokens, width = local.shape[1:]
    columns = min(rank, tokens, width)
    streams = [at.stream("factorization", client) for client in cohort.clients]
    starts = [s.normal_tensor((width, columns)) for s in streams]
    return factorize(local, torch.stack(starts), kind)


def by_factors(
    gradient: Float[Tensor, "k *records tokens width"], factors: Factors | None
) -> dict[str, Tensor]:
    """Return a gradient g by the prompt as those by its factors, g v.T and u.T g.

    At full rank it is returned as it is. Linear: sums may be taken before or after.
    """
    if factors is None:
        return {"local": gradient}
    u, v = factors.u, factors.v
    if gradient.ndim == 4:
        u, v = u.unsqueeze(1), v.unsqueeze(1)
    return {"u": gradient @ v.mT, "v": u.mT @ gradient}


def expected_local_share(
    rank: Rank,
    tokens: int,
    width: int,
    kind: Kind,
    variant: Variant,
    *,
    clip_ratio: float | None,
    clips_jointly: bool,
) -> float:
    """Return what part of a gradient its rebuilt one keeps, for factors at random.

    Projected onto random directions a gradient g keeps rank / width of itself by u,
    rank / tokens by v, and the product of both in the overlap. Where gradients are
    clipped, clipping is taken to bind: then the factors' gradients have the length of
    their clip norm, and g that of its own.

    Without a ``clip_ratio``, local over global clip norm, nothing is clipped;
    ``clips_jointly`` says whether the factors' gradients are clipped together.
    """
    if rank == "full":
        return 1.0 if clip_ratio is None else clip_ratio
    columns = min(rank, tokens, width)
    right, left = columns / width, columns / tokens
    by_u = by_v = 1.0
    if clip_ratio is not None:
        # v of kind "left" is as long as the prompt's rows, which shortens g v.T.
        u_square = right * (CONTEXT_STD**2 * width if kind == "left" else 1.0)
        by_u = clip_ratio / math.sqrt(u_square + left if clips_jointly else u_square)
        by_v = clip_ratio / math.sqrt(u_square + left if clips_jointly else left)
    if variant == "published-code":
        return (by_u * right * (1 + left) + by_v * left) / PUBLISHED_DIVISOR
    return by_u * right * (1 - left) + by_v * left
