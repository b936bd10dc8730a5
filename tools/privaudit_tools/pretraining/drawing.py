"""Draws captioned pictures, thousands a second.

A batch is drawn at once: marks are picked from the stock, bent by a random affine map
and a smooth random displacement, thresholded to a random thickness and coloured. Some
pictures become coarse scans: a black-and-white bitmap of 32x32 counted in blocks of
4x4, which leaves 8x8 values of 17 levels, enlarged again to 32x32.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from pydantic.dataclasses import dataclass as options
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate

from privaudit_tools.pretraining.captions import (
    ATTRIBUTES,
    COLOURS,
    GROUND,
    INK,
    KIND,
    LETTER,
    MANNER,
    NOT_SO,
    SCAN,
    TEXTURE,
    TEXTURES,
)
from privaudit_tools.pretraining.marks import (
    FIELD_REACH,
    FIRST_CAPITAL,
    FIRST_LETTER,
    FIRST_SHAPE,
    KINDS,
    Marks,
)

SIZE = 32
_BLACK, _WHITE = COLOURS.index("black"), COLOURS.index("white")
_RGB = torch.tensor(
    [
        (0.05, 0.05, 0.05),
        (0.95, 0.95, 0.95),
        (0.5, 0.5, 0.5),
        (0.85, 0.1, 0.1),
        (0.1, 0.6, 0.15),
        (0.1, 0.2, 0.8),
        (0.95, 0.9, 0.15),
        (0.95, 0.55, 0.1),
        (0.5, 0.1, 0.6),
        (0.95, 0.6, 0.75),
        (0.45, 0.27, 0.1),
        (0.2, 0.85, 0.9),
    ]
)


@options(frozen=True)
class DrawingSettings:
    """What the pictures show and how.

    Attributes:
        digits: Share of digits.
        letters: Share of letters; the rest is shapes.
        handwritten: Share of handwriting among the digits.
        scans: Share of coarse scans among digits; half of that among the others.
        bend: Standard deviation of the smooth displacement, the mark's height being 2.
    """

    digits: float = 0.45
    letters: float = 0.35
    handwritten: float = 0.0
    scans: float = 0.6
    bend: float = 0.08


@dataclass(frozen=True)
class Pictures:
    """Drawn pictures and the truth about them.

    Attributes:
        pixels: Values in [0, 1].
        attributes: See ``captions``.
    """

    pixels: Float[Tensor, "n 3 h w"]
    attributes: Int[Tensor, "n attributes"]


def draw(
    marks: Marks,
    count: int,
    generator: torch.Generator,
    settings: DrawingSettings | None = None,
) -> Pictures:
    """Draw a batch of pictures of 32x32.

    Args:
        marks: The stock to draw from.
        count: Number of pictures.
        generator: Source of every choice.
        settings: What to draw.
    """
    settings = settings or DrawingSettings()
    table = _choose(count, generator, settings)
    groups = 2 * table[:, KIND] + table[:, MANNER].clamp_min(0)
    ink = _ink(marks, marks.pick(groups, generator), table, generator, settings.bend)
    scanned = table[:, SCAN].bool()
    if scanned.any():
        ink[scanned] = _scan(ink[scanned], generator)
    pixels = _colour(ink, table, generator)
    return Pictures(_photograph(pixels, scanned, generator), table)


def _choose(
    count: int, generator: torch.Generator, settings: DrawingSettings
) -> Int[Tensor, "n attributes"]:
    """Choose the attributes of every picture."""
    table = torch.full((count, ATTRIBUTES), NOT_SO)
    table[:, KIND] = kind = _choose_kinds(count, generator, settings)
    letter = (kind >= FIRST_LETTER) & (kind < FIRST_SHAPE)
    position = (kind - FIRST_LETTER) % (FIRST_CAPITAL - FIRST_LETTER)
    table[:, LETTER] = torch.where(letter, position, NOT_SO)
    chance = torch.rand(count, 4, generator=generator)
    digit = kind < FIRST_LETTER
    by_hand = (digit & (chance[:, 0] < settings.handwritten)).long()
    table[:, MANNER] = torch.where(kind < FIRST_SHAPE, by_hand, NOT_SO)
    share = torch.where(digit, settings.scans, settings.scans / 2)
    table[:, SCAN] = scan = (chance[:, 1] < share).long()
    textured = (chance[:, 2] < 0.4) & (scan == 0)
    texture = 1 + (chance[:, 2] / 0.4 * (len(TEXTURES) - 1)).long()
    table[:, TEXTURE] = torch.where(textured, texture, 0)
    grey = chance[:, 3] < torch.where(scan == 1, 0.7, 0.25)
    table[:, INK], table[:, GROUND] = _choose_colours(grey, generator)
    return table


def _choose_kinds(
    count: int, generator: torch.Generator, settings: DrawingSettings
) -> Int[Tensor, " n"]:
    group, place = torch.rand(2, count, generator=generator)
    digit = (place * FIRST_LETTER).long()
    letter = FIRST_LETTER + (place * (FIRST_SHAPE - FIRST_LETTER)).long()
    shape = FIRST_SHAPE + (place * (KINDS - FIRST_SHAPE)).long()
    letter_or_shape = torch.where(
        group < settings.digits + settings.letters, letter, shape
    )
    return torch.where(group < settings.digits, digit, letter_or_shape)


def _choose_colours(
    grey: Bool[Tensor, " n"], generator: torch.Generator
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Choose ink and ground, far enough from one another to be seen."""
    visible = (_RGB[:, None] - _RGB[None]).abs().mean(-1) > 0.25
    pairs = visible.nonzero()
    chance = torch.rand(len(grey), generator=generator)
    ink, ground = pairs[(chance * len(pairs)).long()].unbind(-1)
    light = chance < 0.6  # white on black, as scans are often stored
    ink = torch.where(grey, torch.where(light, _WHITE, _BLACK), ink)
    ground = torch.where(grey, torch.where(light, _BLACK, _WHITE), ground)
    return ink, ground


def _uniform(
    low: float | Tensor, high: float | Tensor, count: int, generator: torch.Generator
) -> Float[Tensor, " n"]:
    return low + (high - low) * torch.rand(count, generator=generator)


def _ink(
    marks: Marks,
    chosen: Int[Tensor, " n"],
    table: Int[Tensor, "n attributes"],
    generator: torch.Generator,
    bend: float,
) -> Float[Tensor, "n h w"]:
    """Bend the marks, threshold them to a thickness: 1 is ink, 0 is ground."""
    count = len(chosen)
    thickness = _uniform(
        marks.thinnest[chosen], marks.thickest[chosen], count, generator
    )
    scanned = table[:, SCAN].bool()
    fill = torch.where(scanned, 0.9, 0.7) + torch.where(scanned, 0.1, 0.22) * (
        2 * torch.rand(count, generator=generator) - 1
    )
    reach = (1 + thickness.clamp_min(0)) / fill
    grid = _warp(reach, scanned, generator, bend)
    fields = marks.fields[chosen, None].float()
    distance = grid_sample(
        fields, grid / FIELD_REACH, padding_mode="border", align_corners=False
    )[:, 0]
    softness = (0.06 * reach)[:, None, None]  # about a pixel
    return ((thickness[:, None, None] - distance) / softness + 0.5).clamp(0, 1)


def _warp(
    reach: Float[Tensor, " n"],
    scanned: Bool[Tensor, " n"],
    generator: torch.Generator,
    bend: float,
) -> Float[Tensor, "n h w 2"]:
    """Say for every pixel which point of the mark's field it shows."""
    count = len(reach)
    line = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    y, x = torch.meshgrid(line, line, indexing="ij")
    turn = 0.12 * torch.randn(count, generator=generator)
    slant = 0.12 * torch.randn(count, generator=generator)
    widen = _uniform(0.8, 1.3, count, generator)
    slack = torch.where(scanned, 0.06, 0.15)[:, None]
    shift = slack * torch.randn(count, 2, generator=generator)
    x = x - shift[:, :1, None]
    y = y - shift[:, 1:, None]
    cos, sin = torch.cos(turn)[:, None, None], torch.sin(turn)[:, None, None]
    across = (cos * x + sin * y) * widen[:, None, None] + slant[:, None, None] * y
    down = cos * y - sin * x
    bent = bend * torch.randn(count, 2, 4, 4, generator=generator)
    bent = interpolate(bent, size=(SIZE, SIZE), mode="bicubic").movedim(1, -1)
    return torch.stack((across, down), dim=-1) * reach[:, None, None, None] + bent


def _scan(
    ink: Float[Tensor, "n h w"], generator: torch.Generator
) -> Float[Tensor, "n h w"]:
    """Count a bitmap in blocks of 4x4 and enlarge the counts again."""
    coarse = avg_pool2d((ink > 0.5).float()[:, None], 4)
    size = (SIZE, SIZE)
    smooth = interpolate(coarse, size=size, mode="bilinear")[:, 0]
    sharp = interpolate(coarse, size=size, mode="bicubic")[:, 0].clamp(0, 1)
    blocks = interpolate(coarse, size=size, mode="nearest")[:, 0]
    chance = torch.rand(len(ink), 1, 1, generator=generator)
    return torch.where(chance < 0.6, smooth, torch.where(chance < 0.85, sharp, blocks))


def _colour(
    ink: Float[Tensor, "n h w"],
    table: Int[Tensor, "n attributes"],
    generator: torch.Generator,
) -> Float[Tensor, "n 3 h w"]:
    count = len(ink)
    jitter = 0.07 * torch.randn(2, count, 3, generator=generator)
    front = (_RGB[table[:, INK]] + jitter[0])[:, :, None, None]
    back = (_RGB[table[:, GROUND]] + jitter[1])[:, :, None, None]
    second = back + 0.35 * (torch.rand(count, 1, 1, 1, generator=generator) - 0.5)
    pattern = _patterns(table[:, TEXTURE], generator)[:, None]
    ground = back + (second - back) * pattern
    return ground + (front - ground) * ink[:, None]


def _patterns(
    textures: Int[Tensor, " n"], generator: torch.Generator
) -> Float[Tensor, "n h w"]:
    """Draw each picture's background pattern, 0 to 1."""
    count = len(textures)
    line = torch.arange(SIZE) / SIZE
    y, x = torch.meshgrid(line, line, indexing="ij")
    turn = _uniform(0.0, torch.pi, count, generator)[:, None, None]
    speed = _uniform(15.0, 40.0, count, generator)[:, None, None]
    along = torch.cos(turn) * x + torch.sin(turn) * y
    across = torch.cos(turn) * y - torch.sin(turn) * x
    first, second = torch.sin(speed * along), torch.sin(speed * across)
    noise = torch.rand(count, SIZE, SIZE, generator=generator)
    drawn = (
        torch.zeros_like(first),
        (first > 0).float(),
        (first + second > 0.9).float(),
        (first * second > 0).float(),
        noise,
        along.clamp(0, 1),
    )
    pattern = torch.zeros_like(first)
    for number, picture in enumerate(drawn):
        pattern = torch.where((textures == number)[:, None, None], picture, pattern)
    return pattern


def _photograph(
    pixels: Float[Tensor, "n 3 h w"],
    scanned: Bool[Tensor, " n"],
    generator: torch.Generator,
) -> Float[Tensor, "n 3 h w"]:
    """Blur some, change brightness and contrast, add noise."""
    count = len(pixels)
    chance, light, contrast = torch.rand(3, count, 1, 1, 1, generator=generator)
    soft = avg_pool2d(pixels, 3, stride=1, padding=1, count_include_pad=False)
    blurred = (chance < 0.25) & ~scanned[:, None, None, None]
    pixels = torch.where(blurred, soft, pixels)
    pixels = 0.5 + (pixels - 0.5) * (0.7 + 0.45 * contrast) + 0.15 * (light - 0.5)
    grain = torch.randn(pixels.shape, generator=generator)
    strength = 0.03 * torch.rand(count, 1, 1, 1, generator=generator)
    return (pixels + strength * grain).clamp(0, 1)
