"""Handwriting without a hand: digits as jittered pen strokes.

Every writing variant is a handful of control points on a unit square (x to the right, y
down) through which a smooth pen line runs. A point that is written twice in a row is a
corner. The variants come from how people are taught to write; no picture of anybody's
handwriting went into them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Point = tuple[float, float]
Stroke = tuple[Point, ...]

_SAMPLES = 6  # line pieces between two control points
_CHUNK = 32  # copies measured at once, for the sake of memory


@dataclass(frozen=True)
class Variant:
    """One way to write a digit.

    Attributes:
        strokes: Control points of each pen line.
        narrow: Smallest width as a share of the height.
        wide: Largest width as a share of the height.
    """

    strokes: tuple[Stroke, ...]
    narrow: float = 0.45
    wide: float = 0.85


def _variant(*strokes: str, narrow: float = 0.45, wide: float = 0.85) -> Variant:
    """Read control points written as ``"x,y x,y ..."`` in hundredths."""
    return Variant(tuple(_read(stroke) for stroke in strokes), narrow, wide)


def _read(stroke: str) -> Stroke:
    pairs = (pair.split(",") for pair in stroke.split())
    return tuple((int(x) / 100, int(y) / 100) for x, y in pairs)


# The last variant of every digit is held out: only validation pictures use it.
VARIANTS: tuple[tuple[Variant, ...], ...] = (
    (
        _variant("50,0 15,18 5,50 15,82 50,100 85,82 95,50 85,18 50,0"),
        _variant("60,2 25,8 5,45 15,88 50,100 88,75 95,35 75,8 45,6"),
        _variant("75,8 40,0 8,35 5,70 30,98 65,95 95,60 92,25 70,2"),
        _variant("40,5 10,30 5,70 40,100 80,90 95,50 80,10 50,0 30,12"),
    ),
    (
        _variant("50,0 50,100", narrow=0.05, wide=0.15),
        _variant("5,30 60,0 60,0 60,100", narrow=0.2, wide=0.5),
        _variant("5,28 55,0 55,0 55,100", "5,100 100,100", narrow=0.35, wide=0.65),
        _variant("70,0 30,100", narrow=0.1, wide=0.4),
        _variant("0,45 65,0 65,0 60,50 60,100", narrow=0.3, wide=0.6),
        _variant("20,20 70,0 70,0 50,100", "15,100 90,98", narrow=0.25, wide=0.55),
    ),
    (
        _variant("5,25 30,2 70,3 90,28 65,60 10,100 10,100 95,100"),
        _variant("8,22 40,0 85,15 80,45 45,75 18,95 8,86 25,76 55,90 95,97"),
        _variant("10,20 45,0 85,20 70,55 10,96 10,96 50,92 95,100"),
        _variant("5,12 55,0 90,22 55,62 0,100 0,100 60,96 100,88"),
        _variant("15,30 25,5 65,0 88,25 70,55 30,80 5,98 5,98 40,95 90,98"),
    ),
    (
        _variant("10,12 45,0 85,18 75,40 40,48 40,48 80,58 92,80 50,100 5,88"),
        _variant("10,2 85,2 85,2 45,40 45,40 85,55 90,80 50,100 8,90"),
        _variant("10,10 60,0 85,25 55,47 88,70 60,100 5,92"),
        _variant("5,15 40,0 80,15 70,42 30,47 30,47 75,52 95,75 65,98 20,98 0,85"),
        _variant("12,5 70,3 80,25 45,45 45,45 90,62 80,92 40,100 8,95"),
    ),
    (
        _variant("15,0 5,55 5,55 95,55", "70,20 65,100", narrow=0.5, wide=0.9),
        _variant("70,100 70,0 70,0 0,65 0,65 100,65", narrow=0.5, wide=0.9),
        _variant("10,0 10,45 45,55 80,45", "85,0 75,100", narrow=0.45, wide=0.8),
        _variant("45,0 5,62 5,62 95,62", "60,35 60,100", narrow=0.5, wide=0.9),
        _variant("50,0 0,50 0,50 50,58 90,48", "80,15 60,60 50,100"),
        _variant("30,0 5,60 5,60 100,52", "75,25 70,60 60,100", narrow=0.5, wide=0.9),
    ),
    (
        _variant("85,0 20,0 20,0 15,42 15,42 55,35 90,60 75,92 40,100 5,88"),
        _variant("85,3 35,3 15,30 30,45 70,50 85,75 50,100 10,93"),
        _variant("25,5 20,45 20,45 60,40 90,65 60,98 10,95", "25,5 95,0"),
        _variant("95,0 30,4 30,4 10,45 10,45 50,42 80,62 70,88 30,100 0,95"),
        _variant("90,2 25,0 25,0 22,40 22,40 80,45 92,75 60,98 8,98"),
    ),
    (
        _variant("75,0 30,25 8,65 25,97 65,100 90,78 70,55 35,58 12,78"),
        _variant("60,0 15,55 10,85 45,100 85,85 75,60 40,58 12,80"),
        _variant("85,10 60,0 20,25 5,65 30,100 80,92 85,62 50,50 10,70"),
        _variant("45,0 10,50 5,80 35,100 80,90 80,65 45,60 15,85"),
        _variant("90,5 45,15 10,55 10,90 50,100 90,85 80,65 45,65 20,88"),
    ),
    (
        _variant("5,2 95,2 95,2 40,100"),
        _variant("5,2 95,2 95,2 40,100", "20,50 85,50"),
        _variant("5,20 8,2 8,2 95,2 95,2 50,50 35,100"),
        _variant("5,8 50,0 95,5 95,5 55,45 40,100"),
        _variant("5,15 15,3 55,8 95,0 95,0 60,50 50,100", "30,52 90,46"),
        _variant("0,10 40,2 90,4 90,4 75,40 60,100", "35,55 95,52"),
    ),
    (
        _variant("80,12 50,0 15,20 50,47 88,75 50,100 12,75 50,47 85,22 80,12"),
        _variant("50,0 20,22 50,46 80,22 50,0", "50,46 8,73 50,100 92,73 50,46"),
        _variant("90,8 50,0 15,18 45,45 85,75 50,100 10,78 50,45 90,8"),
        _variant("60,0 25,15 45,40 80,70 60,98 20,95 15,70 50,42 80,18 60,0"),
        _variant("75,5 35,5 20,28 60,50 80,80 45,100 10,85 30,58 75,30 75,5"),
    ),
    (
        _variant("85,25 50,0 12,25 40,52 85,25 85,25 80,100"),
        _variant("88,28 50,0 10,25 45,52 88,28 88,28 85,75 50,100 10,90"),
        _variant("85,20 45,0 10,28 40,50 85,20 85,20 70,60 45,100"),
        _variant("80,10 40,0 8,25 40,48 88,15 88,15 92,60 70,95 30,98"),
        _variant("90,12 50,0 15,15 15,42 55,50 85,30 90,12 90,12 82,60 75,100"),
    ),
)


@dataclass(frozen=True)
class Polylines:
    """Pen lines as straight pieces."""

    starts: Float[Tensor, "n pieces 2"]
    ends: Float[Tensor, "n pieces 2"]


def write_variant(
    variant: Variant, copies: int, generator: torch.Generator, *, jitter: float = 0.05
) -> Polylines:
    """Write one variant many times, every copy a little differently.

    The result is centred and fills -1 to 1 in height (or in width, where that is more).

    Args:
        variant: How to write.
        copies: How many times.
        generator: Source of the jitter, the width and the slant.
        jitter: Standard deviation of a control point, as a share of the height.
    """
    moved = _move_points(variant, copies, generator, jitter)
    lines = [_smooth(stroke) for stroke in moved]
    starts = torch.cat([line[:, :-1] for line in lines], dim=1)
    ends = torch.cat([line[:, 1:] for line in lines], dim=1)
    width = torch.empty(copies).uniform_(
        variant.narrow, variant.wide, generator=generator
    )
    slant = 0.2 * torch.randn(copies, generator=generator)
    starts, ends = _fit(_shear(starts, width, slant), _shear(ends, width, slant))
    return Polylines(starts, ends)


def _move_points(
    variant: Variant, copies: int, generator: torch.Generator, jitter: float
) -> list[Float[Tensor, "n points 2"]]:
    """Jitter the control points; points that coincide stay together."""
    places = sorted({point for stroke in variant.strokes for point in stroke})
    noise = jitter * torch.randn(copies, len(places), 2, generator=generator)
    moved = torch.tensor(places) + noise
    return [moved[:, [places.index(p) for p in s]] for s in variant.strokes]


def _smooth(points: Float[Tensor, "n points 2"]) -> Float[Tensor, "n samples 2"]:
    """Run a Catmull-Rom curve through the control points."""
    padded = torch.cat([points[:, :1], points, points[:, -1:]], dim=1)
    windows = padded.unfold(1, 4, 1)  # [n, points - 1, 2, 4]
    t = torch.arange(_SAMPLES) / _SAMPLES
    weights = 0.5 * torch.stack(
        (
            -t + 2 * t**2 - t**3,
            2 - 5 * t**2 + 3 * t**3,
            t + 4 * t**2 - 3 * t**3,
            t**3 - t**2,
        )
    )
    curve = torch.einsum("npck,ks->npsc", windows, weights).flatten(1, 2)
    return torch.cat([curve, points[:, -1:]], dim=1)


def _shear(
    points: Float[Tensor, "n samples 2"],
    width: Float[Tensor, " n"],
    slant: Float[Tensor, " n"],
) -> Float[Tensor, "n samples 2"]:
    x, y = points.unbind(-1)
    return torch.stack((x * width[:, None] - slant[:, None] * y, y), dim=-1)


def _fit(
    starts: Float[Tensor, "n pieces 2"], ends: Float[Tensor, "n pieces 2"]
) -> tuple[Float[Tensor, "n pieces 2"], Float[Tensor, "n pieces 2"]]:
    """Centre the bounding box at 0 and scale its longer side to 2."""
    both = torch.cat([starts, ends], dim=1)
    low, high = both.amin(1, keepdim=True), both.amax(1, keepdim=True)
    centre = (low + high) / 2
    scale = 2 / (high - low).amax(-1, keepdim=True)
    return (starts - centre) * scale, (ends - centre) * scale


def distance_field(
    lines: Polylines, grid: Float[Tensor, "s s 2"]
) -> Float[Tensor, "n s s"]:
    """Measure how far every point of a grid is from the pen line."""
    chunks = zip(lines.starts.split(_CHUNK), lines.ends.split(_CHUNK), strict=True)
    return torch.cat([_distances(starts, ends, grid) for starts, ends in chunks])


def _distances(
    starts: Float[Tensor, "n pieces 2"],
    ends: Float[Tensor, "n pieces 2"],
    grid: Float[Tensor, "s s 2"],
) -> Float[Tensor, "n s s"]:
    step = ends - starts
    length = step.square().sum(-1).clamp_min(1e-9)[:, None, None]
    # Each axis by itself: sums over an axis of two took most of the time.
    step_x, step_y = step[:, None, None].unbind(-1)
    x = grid[None, :, :, None, 0] - starts[:, None, None, :, 0]
    y = grid[None, :, :, None, 1] - starts[:, None, None, :, 1]
    along = (x * step_x).add_(y * step_y).div_(length).clamp_(0, 1)
    squares = x.sub_(along * step_x).square_().add_(y.sub_(along * step_y).square_())
    return squares.amin(-1).sqrt()


def variants_for(digit: int, *, held_out: bool) -> Sequence[Variant]:
    """List the variants of a digit for training, or the one for validation."""
    return VARIANTS[digit][-1:] if held_out else VARIANTS[digit][:-1]
