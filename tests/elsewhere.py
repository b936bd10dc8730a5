"""Another machine on this one: what rounding may do to features, and nothing more."""

import os
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from privaudit.datasets.records import PictureTokens, Records
from privaudit.models.frozen_model import FrozenModel


def compute_elsewhere(put: Callable[..., object]) -> None:
    """Compute in this process as the environment says that another machine does.

    Args:
        put: Sets an attribute of an object, such as setattr.
    """
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # also above the cores'
    torch.set_float32_matmul_precision(os.environ.get("TEST_PRECISION", "highest"))
    encode = FrozenModel.encode
    if os.environ.get("TEST_LAST_BITS"):
        put(
            FrozenModel,
            "encode",
            lambda *asked, **how: with_other_last_bits(encode(*asked, **how)),
        )


def with_other_last_bits(records: Records, seed: int = 0) -> Records:
    """Return records with features and tokens up to a unit in the last place off.

    Each number moves up, down or not at all, by chance: copies differ too.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = records.tokens
    return replace(
        records,
        features=moved(records.features, generator),
        tokens=tokens and PictureTokens.of(moved(tokens.read(), generator)),
    )


def moved(numbers: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers up to a unit in the last place off."""
    step = torch.randint(-1, 2, numbers.shape, generator=generator)
    towards = torch.where(step > 0, torch.inf, -torch.inf).to(numbers.dtype)
    return torch.where(step == 0, numbers, torch.nextafter(numbers, towards))
