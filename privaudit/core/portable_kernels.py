"""Kernels of torch that follow the processor in any settings, replaced by portable ones.

MKL computes these functions from the processor's approximate reciprocals (RCPPS,
RSQRTPS), whose bits every maker chooses: a square root is then off by one unit in the
last place on one processor, and not on the next. NumPy's baseline kernels and glibc's
are exact, or the same everywhere.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privaudit.core.portable_bits import bits_here

REPLACED: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
}


@lru_cache(maxsize=1)
def replace_kernels() -> Any:
    """Replace the kernels on the CPU, in a process of portable bits; once.

    What is returned holds the replacements as long as it lives; None for native bits.
    """
    if bits_here() == "native":
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are replaced
        for name, function in REPLACED.items():
            compute = partial(_compute, function)
            library.impl(name, compute, "CPU")
            library.impl(f"{name}_", partial(_compute_into, function), "CPU")
            library.impl(f"{name}.out", partial(_compute_into, function), "CPU")
    return library


def _compute(function: Callable[..., Any], x: Tensor) -> Tensor:
    if x.dtype in (torch.float16, torch.bfloat16):
        return _compute(function, x.float()).to(x.dtype)
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    with np.errstate(all="ignore"):  # torch, too, is silent about infinities and NaN
        return torch.from_numpy(np.asarray(function(x.detach().numpy())))


def _compute_into(
    function: Callable[..., Any], x: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Write into ``out``, or else into the tensor itself."""
    result, place = _compute(function, x), x if out is None else out
    if place.shape != result.shape:
        place.resize_(result.shape)
    return place.copy_(result)
