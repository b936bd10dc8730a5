"""Draw the digits of ``drawn-digits``, which the package holds as a file.

The pictures come from the strokes that ``tiny_clip`` draws handwriting with: every
writing variant, sloppier, turned, and with a broader pen; bitmaps of 32 by 32 are counted
in blocks of 4 by 4. How much so was set by what the untrained ``tiny-clip`` reads: 56 % of
these, 84 % of ``digits``.

``python -m privaudit_tools.pretraining.drawn_digits`` writes the file.
"""

import io

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import avg_pool2d

from privaudit.core.seeds import FixedSeed
from privaudit.core.storage import write_bytes
from privaudit.datasets.images.digits import FILE, NAMES
from privaudit_tools.pretraining.strokes import (
    VARIANTS,
    Polylines,
    distance_field,
    write_variant,
)

RECORDS = 1000
BITMAP, BLOCK = 32, 4
JITTER = 0.12  # tiny_clip's own handwriting has 0.05, and 0.075 where it is sloppy
TURN = 0.4  # standard deviation, in radians
THINNEST, THICKEST = 0.15, 0.35  # half a pen's width; the digit's longer side is 2
RIM = 1.15  # a bitmap shows -1.15 to 1.15, so that a pen has room
_SEED = 31_907  # tiny_clip was pretrained from streams of other names and seeds


def draw_digits() -> UInt8[np.ndarray, "records 8 8"]:
    """Return grey levels from 0 to 16, the digits in turn."""
    labels = torch.arange(RECORDS) % len(NAMES)
    generator = FixedSeed(_SEED).torch("drawn-digits")
    ink = torch.empty(RECORDS, BITMAP, BITMAP)
    for digit in range(len(NAMES)):
        is_digit = labels == digit
        ink[is_digit] = _draw(digit, int(is_digit.sum()), generator)
    share = avg_pool2d(ink[:, None], BLOCK)[:, 0]
    return (share * BLOCK**2).round().to(torch.uint8).numpy()


def _draw(
    digit: int, count: int, generator: torch.Generator
) -> Float[Tensor, "count height width"]:
    """Draw bitmaps of one digit, each in one of its writing variants: 1 is ink."""
    variants = VARIANTS[digit]
    chosen = torch.randint(len(variants), (count,), generator=generator)
    width = torch.empty(count, 1, 1).uniform_(THINNEST, THICKEST, generator=generator)
    distance = torch.empty(count, BITMAP, BITMAP)
    for number in range(len(variants)):
        indices = (chosen == number).nonzero().flatten()
        distance[indices] = _distances(digit, number, indices, generator)
    return (distance < width).float()


def _distances(
    digit: int, variant: int, mine: Int[Tensor, " n"], generator: torch.Generator
) -> Float[Tensor, "n height width"]:
    """Return how far each point of a bitmap is from the pen's line."""
    if not len(mine):
        return torch.empty(0, BITMAP, BITMAP)
    lines = write_variant(VARIANTS[digit][variant], len(mine), generator, jitter=JITTER)
    turns = TURN * torch.randn(len(mine), generator=generator)
    lines = Polylines(_turned(lines.starts, turns), _turned(lines.ends, turns))
    return distance_field(lines, _grid())


def _turned(
    points: Float[Tensor, "n pieces 2"], turns: Float[Tensor, " n"]
) -> Float[Tensor, "n pieces 2"]:
    cos, sin = torch.cos(turns)[:, None], torch.sin(turns)[:, None]
    x, y = points.unbind(-1)
    return torch.stack((cos * x - sin * y, sin * x + cos * y), dim=-1)


def _grid() -> Float[Tensor, "size size 2"]:
    """Lay out the middles of a bitmap's pixels as (x, y)."""
    line = ((torch.arange(BITMAP) + 0.5) / BITMAP * 2 - 1) * RIM
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((x, y), dim=-1)


if __name__ == "__main__":
    content = io.BytesIO()
    np.savez_compressed(content, levels=draw_digits())
    write_bytes(FILE, content.getvalue())
