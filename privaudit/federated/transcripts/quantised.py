"""Tensors in few bits: rounded to an even grid from the smallest number to the largest.

A code of b bits stands for low + code (high - low) / (2^b - 1); codes lie bit by bit
behind each other, so that a message holds as many bytes as would be sent.

Source: Suresh, Yu, Kumar, McMahan, "Distributed mean estimation with limited
communication", ICML 2017, section 2.2, for stochastic rounding; here each tensor of each
client has its own grid, and "nearest" rounds without chance.
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from privaudit.core.errors import TranscriptError

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
        >>> back = dequantised(sent, {"a": numbers[0]})["a"]
        >>> (3 * back).round().tolist()
        [[0.0, 1.0, 3.0]]
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

    Raises:
        TranscriptError: Codes, their range and the tensor that they are of do not fit.
    """
    return {
        name: _numbers(name, tensor, sent[RANGE + name], like)
        if RANGE + name in sent
        else tensor
        for name, tensor in sent.items()
        if not name.startswith(RANGE)
    }


def _numbers(
    name: str, packed: Tensor, ends: Tensor, like: Mapping[str, Tensor]
) -> Float[Tensor, "k ..."]:
    width = _width(name, packed, ends, like)
    shape = like[name].shape
    low, high, _ = ends.unsqueeze(2).unbind(dim=1)
    codes = _unpacked(packed, width)[:, : math.prod(shape)]
    numbers = low + codes * ((high - low) / _levels(width))
    return numbers.view(len(packed), *shape)


def _width(name: str, packed: Tensor, ends: Tensor, like: Mapping[str, Tensor]) -> int:
    """Return the bits of a code, of a message that may be anybody's."""
    fits = name in like and packed.dtype == torch.uint8 and packed.ndim == 2
    if fits and tuple(ends.shape) == (len(packed), 3):
        widths = set(ends[:, 2].tolist())
        (width,) = widths if len(widths) == 1 else (0,)
        if width in range(1, MOST_BITS + 1):
            size = -(-like[name].numel() * int(width) // 8)
            if packed.shape[1] == size and bool(ends.isfinite().all()):
                return int(width)
    raise TranscriptError(
        f"Uploads have {name!r} in few bits, and its codes, their range and the tensor "
        f"that they are of do not fit: codes {tuple(packed.shape)} of {packed.dtype}, "
        f"range {tuple(ends.shape)}. Take the record from where it was written."
    )


def _levels(bits: int) -> int:
    return (1 << bits) - 1


def _packed(codes: Int[Tensor, "k numbers"], bits: int) -> UInt8[Tensor, "k bytes"]:
    ones = ((codes.unsqueeze(2) >> _places(bits, codes)) & 1).flatten(1)
    whole = torch.nn.functional.pad(ones, (0, -ones.shape[1] % 8))
    eights = whole.view(len(codes), -1, 8) << _places(8, codes)
    return eights.sum(dim=2).to(torch.uint8)


def _unpacked(packed: UInt8[Tensor, "k bytes"], bits: int) -> Int[Tensor, "k numbers"]:
    ones = ((packed.long().unsqueeze(2) >> _places(8, packed)) & 1).flatten(1)
    codes = ones[:, : ones.shape[1] // bits * bits].view(len(packed), -1, bits)
    return (codes << _places(bits, codes)).sum(dim=2)


def _places(bits: int, beside: Tensor) -> Int[Tensor, " bits"]:
    return torch.arange(bits, device=beside.device)
