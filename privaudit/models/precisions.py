"""Precisions of weights: which one a device is faster in, measured once for each."""

import time
from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear

from privaudit.models.interfaces import Precision

FASTER_OF: tuple[Precision, ...] = ("float32", "bfloat16")
_ROWS, _WIDTH, _TIMES = 256, 768, 5  # a layer of a small transformer; the best counts


@cache
def seconds_of(device: torch.device) -> dict[str, float]:
    """Return how long a linear layer of a transformer takes in each precision.

    float16 is not among them: its range is small for gradients.
    """
    return {precision: _seconds(precision, device) for precision in FASTER_OF}


def _seconds(precision: Precision, device: torch.device) -> float:
    dtype: torch.dtype = getattr(torch, precision)
    rows = torch.ones(_ROWS, _WIDTH, dtype=dtype, device=device)
    weight = torch.ones(4 * _WIDTH, _WIDTH, dtype=dtype, device=device)
    linear(rows, weight)  # the first sets up kernels
    taken = []
    for _ in range(_TIMES):
        _wait(device)
        begun = time.perf_counter()
        linear(rows, weight)
        _wait(device)
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        module: Any = getattr(torch, device.type)
        module.synchronize()
