"""Tensors in few bits: rounded to an even grid from the smallest number to the largest.

A code of b bits stands for low + code (high - low) / (2^b - 1); codes lie bit by bit
behind each other, so that a message holds as many bytes as would be sent.

Source: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited
communication", ICML 2017, section 2.2, for stochastic rounding; here each tensor of each
client has its own grid, and "nearest" rounds without chance.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

RANGE = "range of "
"""Begins the name of a tensor's smallest number, its largest, and how many bits."""
MOST_BITS = 16


def quantised(
    name: str,
    tensor: Float[Tensor, "k ..."],
    bits: int,
    draws: Float[Tensor, "k ..."] | None,
) -> dict[str, Tensor]:
    """Return each client's codes [k, bytes] of a tensor, and its range [k, 3].

    Args:
        name: The tensor's.
        tensor: Of k clients.
        bits: Of each code, 1 to 16.
        draws: In [0, 1), for stochastic rounding, whose mean is the number itself; None
            takes the nearest code.

    Example:
        >>> numbers = torch.tensor([[0.0, 0.3, 1.0]])
        >>> sent = quantised("a", numbers, 2, None)
        >>> sent["a"].tolist(), sent["range of a"].tolist()
        ([[52]], [[0.0, 1.0, 2.0]])
        >>> dequantised(sent, {"a": numbers[0]})["a"].numpy().round(3).tolist()
        [[0.0, 0.333, 1.0]]
    """
    rows = tensor.flatten(1)
    low, high = rows.min(dim=1).values, rows.max(dim=1).values
    step = ((high - low) / _levels(bits)).unsqueeze(1)
    places = torch.where(step > 0, (rows - low.unsqueeze(1)) / step, 0.0)
    up = torch.full_like(rows, 0.5) if draws is None else draws.flatten(1)
    codes = (places + up).floor().clamp(0, _levels(bits)).long()
    ends = torch.stack([low, high, torch.full_like(low, bits)], dim=1)
    return {name: _packed(codes, bits), RANGE + name: ends}


def dequantised(
    sent: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return stacked tensors with numbers in place of codes; others as they are.

    Args:
        sent: Stacked over clients.
        like: Tensors of one client, whose shapes are those before.
    """
    return {
        name: _numbers(tensor, sent[RANGE + name], like[name].shape)
        if RANGE + name in sent
        else tensor
        for name, tensor in sent.items()
        if not name.startswith(RANGE)
    }


def _numbers(
    packed: UInt8[Tensor, "k bytes"],
    ends: Float[Tensor, "k 3"],
    shape: Sequence[int],
) -> Float[Tensor, "k ..."]:
    low, high, bits = ends.unsqueeze(2).unbind(dim=1)
    width = int(bits[0])
    codes = _unpacked(packed, width)[:, : math.prod(shape)]
    numbers = low + codes * ((high - low) / _levels(width))
    return numbers.view(len(packed), *shape)


def _levels(bits: int) -> int:
    return (1 << bits) - 1


def _packed(codes: Int[Tensor, "k numbers"], bits: int) -> UInt8[Tensor, "k bytes"]:
    ones = ((codes.unsqueeze(2) >> torch.arange(bits)) & 1).flatten(1)
    whole = torch.nn.functional.pad(ones, (0, -ones.shape[1] % 8))
    eights = whole.view(len(codes), -1, 8) << torch.arange(8)
    return eights.sum(dim=2).to(torch.uint8)


def _unpacked(packed: UInt8[Tensor, "k bytes"], bits: int) -> Int[Tensor, "k numbers"]:
    ones = ((packed.long().unsqueeze(2) >> torch.arange(8)) & 1).flatten(1)
    codes = ones[:, : ones.shape[1] // bits * bits].view(len(packed), -1, bits)
    return (codes << torch.arange(bits)).sum(dim=2)
