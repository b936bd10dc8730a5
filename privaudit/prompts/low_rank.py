"""A cohort's local prompts in low-rank factors, and what their gradients keep."""

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from privaudit.privacy.factorization import (
    PUBLISHED_DIVISOR,
    Factors,
    Kind,
    Variant,
    factorize,
)
from privaudit.prompts.learning import CONTEXT_STD
from privaudit.trainer import Cohort, Round

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

    Args:
        rank: Of the factors.
        tokens: Rows of a prompt.
        width: Columns of a prompt.
        kind: Of the factorization.
        variant: How the gradient is rebuilt.
        clip_ratio: Local over global clip norm; None if nothing is clipped.
        clips_jointly: Whether the factors' gradients are clipped together.
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
