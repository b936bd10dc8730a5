"""Whether an owner's models answer the same when they are asked again.

In training mode they do not: dropout draws anew in each call, and batch normalisation
answers by who else is asked about.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

ASKED = 8  # records that are asked about again
SAME, ALIKE = 1e-3, 0.05  # parts of the answers' spread: asked alike, in another batch


def why_not_repeatable(
    ask: Callable[[np.ndarray], Any],
    positions: Shaped[np.ndarray, " records"],
    answer: Any,
) -> str:
    """Return how answers differ from call to call; empty where they do not.

    Kernels of another batch's size round otherwise, in half precision in the second
    digit; a model in training mode differs by more.

    Args:
        ask: Returns what one model says of records: logits, or a pair with labels.
        positions: Of the records, at least one.
        answer: What it said of all of them in one batch.
    """
    few = positions[:ASKED]
    first, again, whole = (_logits(one) for one in (ask(few), ask(few), answer))
    if _differ(first, again, SAME):
        return "answers the same question differently"
    if _differ(first, whole[: len(few)], ALIKE):
        return "answers by which other records are in a batch"
    return ""


def _logits(answer: Any) -> Tensor:
    given = answer[0] if isinstance(answer, tuple) else answer
    return torch.as_tensor(given).detach().cpu().double()


def _differ(one: Tensor, other: Tensor, by: float) -> bool:
    """Say whether answers differ by more than a part of their spread."""
    if one.shape != other.shape:  # texts are padded to the longest of a batch
        return False
    is_finite = torch.isfinite(one) & torch.isfinite(other)
    values, gaps = one[is_finite], (one - other)[is_finite]
    if not values.numel():
        return False
    return bool(gaps.abs().mean() > by * values.std(unbiased=False).clamp(min=1e-12))
