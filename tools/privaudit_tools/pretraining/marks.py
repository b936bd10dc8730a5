"""What can be drawn: digits, letters and shapes as distance fields.

A mark is stored as the signed distance to its edge (or to its pen line) on a small
grid: thickness is then a threshold, and bending the mark is resampling a smooth
function. The fonts are those that matplotlib brings along, so they are the same on
every machine.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from privaudit.datasets.images.digits import NAMES
from privaudit_tools.pretraining.strokes import (
    distance_field,
    variants_for,
    write_variant,
)

DIGITS = NAMES
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHAPES = (
    "circle",
    "ring",
    "square",
    "triangle",
    "star",
    "cross",
    "diamond",
    "arrow",
    "moon",
    "heart",
)
# Kinds are numbered: digits, small letters, capital letters, shapes.
FIRST_LETTER = len(DIGITS)
FIRST_CAPITAL = FIRST_LETTER + len(LETTERS)
FIRST_SHAPE = FIRST_CAPITAL + len(LETTERS)
KINDS = FIRST_SHAPE + len(SHAPES)
PRINTED, HANDWRITTEN = 0, 1

FIELD_SIZE = 48
FIELD_REACH = 1.5  # a mark fills -1 to 1, its field -1.5 to 1.5

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralBolIta",
    "cmb10",
    "cmr10",
    "cmti10",
    "cmtt10",
)
HELD_OUT_FONTS = (
    "DejaVuSans-BoldOblique",
    "DejaVuSerif-BoldItalic",
    "STIXGeneralItalic",
    "cmss10",
)


@dataclass(frozen=True)
class Marks:
    """A stock of marks, sorted by kind and manner.

    Attributes:
        fields: Signed distance to the edge, negative inside; for handwriting, distance
            to the pen line. The mark's longer side spans -1 to 1.
        groups: ``2 * kind + manner`` of each mark, ascending.
        thinnest: Smallest sensible threshold on the field.
        thickest: Largest.
    """

    fields: Float[Tensor, "m s s"]
    groups: Int[Tensor, " m"]
    thinnest: Float[Tensor, " m"]
    thickest: Float[Tensor, " m"]

    def pick(
        self, groups: Int[Tensor, " n"], generator: torch.Generator
    ) -> Int[Tensor, " n"]:
        """Pick one mark at random from each of the groups asked for."""
        first = torch.searchsorted(self.groups, groups)
        behind = torch.searchsorted(self.groups, groups, right=True)
        chance = torch.rand(len(groups), generator=generator)
        return first + (chance * (behind - first)).long()


def build_marks(
    generator: torch.Generator,
    *,
    held_out: bool = False,
    copies: int = 250,
    jitter: float = 0.05,
) -> Marks:
    """Draw the stock.

    Args:
        generator: Source of the handwriting's jitter.
        held_out: Use the fonts and writing variants that training never sees.
        copies: How often each writing variant is written.
        jitter: See ``write_variant``.
    """
    fonts = HELD_OUT_FONTS if held_out else FONTS
    parts = [*_printed(fonts), *_shapes()]
    for digit in range(len(DIGITS)):
        for variant in variants_for(digit, held_out=held_out):
            lines = write_variant(variant, copies, generator, jitter=jitter)
            field = distance_field(lines, _grid())
            parts.append((2 * digit + HANDWRITTEN, field, 0.08, 0.22))
    parts.sort(key=lambda part: part[0])
    repeats = torch.tensor([len(field) for _, field, _, _ in parts])
    return Marks(
        torch.cat([field for _, field, _, _ in parts]),
        torch.tensor([group for group, _, _, _ in parts]).repeat_interleave(repeats),
        torch.tensor([thin for _, _, thin, _ in parts]).repeat_interleave(repeats),
        torch.tensor([thick for _, _, _, thick in parts]).repeat_interleave(repeats),
    )


Outline = list[tuple[float, float]]  # corners, within -1 to 1
_Part = tuple[int, Float[Tensor, "c s s"], float, float]


def _grid() -> Float[Tensor, "s s 2"]:
    """Lay out the field's points as (x, y)."""
    line = ((torch.arange(FIELD_SIZE) + 0.5) / FIELD_SIZE * 2 - 1) * FIELD_REACH
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((x, y), dim=-1)


def _printed(fonts: tuple[str, ...]) -> Iterator[_Part]:
    import matplotlib  # slow to import

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    characters = "0123456789" + LETTERS + LETTERS.upper()
    for name in fonts:
        font = ImageFont.truetype(folder / f"{name}.ttf", 96)
        for kind, character in enumerate(characters):
            mask = _paint(partial(_type, character=character, font=font))
            yield 2 * kind + PRINTED, _field_of(mask), -0.05, 0.08


def _shapes() -> Iterator[_Part]:
    for index, name in enumerate(SHAPES):
        mask = _paint(partial(_fill, corners=_OUTLINES[name]))
        if name == "ring":
            mask &= ~_paint(lambda draw: draw.ellipse((95, 95, 205, 205), 255))
        if name == "moon":
            mask &= ~_paint(lambda draw: draw.ellipse((95, 40, 275, 220), 255))
        yield 2 * (FIRST_SHAPE + index) + PRINTED, _field_of(mask), -0.05, 0.05


def _paint(
    paint: Callable[[ImageDraw.ImageDraw], object],
) -> Bool[np.ndarray, "h w"]:
    canvas = Image.new("L", (300, 300))
    paint(ImageDraw.Draw(canvas))
    return np.asarray(canvas) > 127


def _type(
    draw: ImageDraw.ImageDraw, character: str, font: ImageFont.FreeTypeFont
) -> None:
    draw.text((90, 60), character, 255, font)


def _fill(draw: ImageDraw.ImageDraw, corners: Outline) -> None:
    draw.polygon([(150 + 90 * x, 150 + 90 * y) for x, y in corners], 255)


def _field_of(mask: Bool[np.ndarray, "h w"]) -> Float[Tensor, "1 s s"]:
    """Turn a filled mask into a signed distance field of the common size."""
    from scipy.ndimage import distance_transform_edt  # slow to import

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    ink = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    side, fine = max(ink.shape), 2 * FIELD_SIZE
    scale = fine / FIELD_REACH / side
    size = [max(1, round(length * scale)) for length in ink.shape[::-1]]
    small = Image.fromarray(ink.astype(np.uint8) * 255).resize((size[0], size[1]))
    canvas = Image.new("L", (fine, fine))
    canvas.paste(small, ((fine - size[0]) // 2, (fine - size[1]) // 2))
    inside = np.asarray(canvas) > 127
    distance = distance_transform_edt(~inside) - distance_transform_edt(inside)
    field = torch.from_numpy(distance).float() * (2 * FIELD_REACH / fine)
    return torch.nn.functional.avg_pool2d(field[None], 2)


def _round(steps: int, radius: Callable[[float], float]) -> Outline:
    turns = [2 * math.pi * step / steps for step in range(steps)]
    return [(radius(t) * math.sin(t), -radius(t) * math.cos(t)) for t in turns]


def _heart() -> Outline:
    turns = [2 * math.pi * step / 60 for step in range(60)]
    return [
        (
            math.sin(t) ** 3,
            -(13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t)) / 17,
        )
        for t in turns
    ]


_CROSS: Outline = [
    (-1.0, 0.3),
    (-1.0, -0.3),
    (-0.3, -0.3),
    (-0.3, -1.0),
    (0.3, -1.0),
    (0.3, -0.3),
]
_OUTLINES: dict[str, Outline] = {
    "circle": _round(60, lambda t: 1.0),
    "ring": _round(60, lambda t: 1.0),
    "square": [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)],
    "triangle": [(0.0, -1.0), (1.0, 0.8), (-1.0, 0.8)],
    "star": _round(10, lambda t: 1.0 if round(t / math.pi * 5) % 2 == 0 else 0.42),
    "cross": [*_CROSS, *((-x, -y) for x, y in _CROSS)],
    "diamond": [(0.0, -1.0), (0.65, 0.0), (0.0, 1.0), (-0.65, 0.0)],
    "arrow": [
        (-1.0, -0.25),
        (0.2, -0.25),
        (0.2, -0.7),
        (1.0, 0.0),
        (0.2, 0.7),
        (0.2, 0.25),
        (-1.0, 0.25),
    ],
    "moon": _round(60, lambda t: 1.0),
    "heart": _heart(),
}
