"""Drawing of scenes: small pictures of 64 by 64 pixels, thousands a second.

Objects are printed with masks that are cut from formulas; tags in pictures' corners have
letters and digits of three by five pixels.

Drawn scenes as data: groups of like objects, their regions, and their distributions.

Ordinary scenes are what ``tiny-llava`` was pretrained on. The shifted ones stand for
private records: other shapes are frequent, each shape has its own few colours, most
objects have a texture, and there are up to six of them. The far ones have only pairs
of shape and colour that the shifted ones never have.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8

SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "heart", "moon")
PLURALS = (
    "circles", "squares", "triangles", "stars", "crosses", "diamonds", "hearts",
    "moons",
)  # fmt: skip
COLOURS = (
    "red", "green", "blue", "yellow", "black", "white", "orange", "purple", "pink",
    "brown",
)  # fmt: skip
TEXTURES = ("plain", "striped", "dotted", "hollow")
SIZES = ("small", "medium", "large")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
LARGEST_COUNT = len(NUMBERS) - 1
PLAIN, MEDIUM = TEXTURES.index("plain"), SIZES.index("medium")

Arrangement = Literal["rows", "columns"]


@dataclass(frozen=True)
class Group:
    """Some objects that look alike; numbers are positions in ``SHAPES``, ``COLOURS`` etc.

    No other group of the scene has the same shape.

    Attributes:
        count: How many, from 1 to ``LARGEST_COUNT``.
    """

    count: int
    shape: int
    colour: int
    size: int
    texture: int

    @property
    def noun(self) -> str:
        """The shape's name, in the plural where there are several."""
        return (SHAPES if self.count == 1 else PLURALS)[self.shape]


@dataclass(frozen=True)
class Tag:
    """What is particular to one record, and follows from nothing else about it.

    Attributes:
        letter: One small letter.
        number: 0 to 99.
        owner: A first name.
    """

    letter: str
    number: int
    owner: str


@dataclass(frozen=True)
class Scene:
    """One picture's content.

    Attributes:
        groups: One to three, from top to bottom or from left to right; the main
            object is the first one's.
        arrangement: Whether the groups lie in rows, one above another, or in columns.
        tag: What is written in the picture's corner; None for ordinary scenes.
    """

    groups: tuple[Group, ...]
    arrangement: Arrangement
    tag: Tag | None = None

    @property
    def relations(self) -> tuple[str, str]:
        """How a group lies to the next one, and the next one to it."""
        if self.arrangement == "rows":
            return "above", "below"
        return "left of", "right of"


SIDE = 64  # pixels of a picture
FLOOR = 56  # rows of objects; below them a tag has its place
SMALLEST_CELLS = (0, 13, 17)  # pixels that an object of each size needs
DIAMETERS = ((8, 9), (11, 12), (15, 16))  # least and largest, by size


@dataclass(frozen=True)
class Region:
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int


@cache
def regions(groups: int, arrangement: Arrangement) -> tuple[Region, ...]:
    """Return each group's rectangle, from top to bottom or from left to right."""
    if arrangement == "rows":
        edges = [FLOOR * n // groups for n in range(groups + 1)]
        return tuple(Region(a, 0, b - a, SIDE) for a, b in pairwise(edges))
    edges = [SIDE * n // groups for n in range(groups + 1)]
    return tuple(Region(0, a, FLOOR, b - a) for a, b in pairwise(edges))


@cache
def grid(region: Region, count: int) -> tuple[int, int]:
    """Return rows and columns of the grid with the largest cells for ``count``."""
    choices = [(rows, -(-count // rows)) for rows in range(1, count + 1)]
    return max(choices, key=lambda choice: _side(region, *choice))


@cache
def cell_side(region: Region, count: int) -> float:
    """Return the shorter side of a cell of that grid, in pixels."""
    return _side(region, *grid(region, count))


def _side(region: Region, rows: int, columns: int) -> float:
    return min(region.height / rows, region.width / columns)


_NUMBERS_OF_A_GROUP = 5


@dataclass(frozen=True)
class Distribution:
    """Weights of everything that is chosen; they need not add up to 1.

    Attributes:
        groups: Of one, two and three groups.
        counts: Of one object, two, … in a group.
        shapes: Of each of ``SHAPES``.
        colours: Of ``COLOURS``, for each shape.
        sizes: Of ``SIZES``; a size that has no room becomes the next smaller.
        textures: Of each of ``TEXTURES``.
    """

    groups: Sequence[float]
    counts: Sequence[float]
    shapes: Sequence[float]
    colours: Sequence[Sequence[float]]
    sizes: Sequence[float]
    textures: Sequence[float]


def draw_scene(distribution: Distribution, rng: np.random.Generator) -> Scene:
    """Choose a scene without a tag; its groups differ in shape."""
    chances = iter(rng.random(2 + 3 * _NUMBERS_OF_A_GROUP).tolist())
    number = 1 + _pick(distribution.groups, next(chances))
    arrangement: Arrangement = "rows" if next(chances) < 0.5 else "columns"
    weights = list(distribution.shapes)
    groups = []
    for region in regions(number, arrangement):
        shape = _pick(weights, next(chances))
        weights[shape] = 0.0
        count = 1 + _pick(distribution.counts, next(chances))
        size = _pick(distribution.sizes, next(chances))
        while size and cell_side(region, count) < SMALLEST_CELLS[size]:
            size -= 1
        groups.append(
            Group(
                count=count,
                shape=shape,
                colour=_pick(distribution.colours[shape], next(chances)),
                size=size,
                texture=_pick(distribution.textures, next(chances)),
            )
        )
    return Scene(tuple(groups), arrangement)


def _pick(weights: Sequence[float], chance: float) -> int:
    """Return a position, with a probability in proportion to its weight."""
    ends = list(accumulate(weights))
    return bisect_right(ends, chance * ends[-1])


def _shifted(colours: Sequence[Sequence[float]]) -> Distribution:
    return Distribution(
        groups=(0.2, 0.4, 0.4),
        counts=(0.15, 0.15, 0.2, 0.2, 0.15, 0.15),
        shapes=(1.0,) * len(SHAPES),
        colours=colours,
        sizes=(0.4, 0.2, 0.4),
        textures=(0.25, 0.25, 0.25, 0.25),
    )


def _own_colours(start: int) -> tuple[tuple[float, ...], ...]:
    """Return five colours for each shape: every other one, from ``start`` on.

    The first two are frequent. Rare colours of ordinary scenes come first for half of
    the shapes.
    """
    table = []
    for shape in range(len(SHAPES)):
        weights = [0.0] * len(COLOURS)
        for place in range(len(COLOURS) // 2):
            colour = (len(COLOURS) - 1 - start - shape - 2 * place) % len(COLOURS)
            weights[colour] = 3.0 if place < 2 else 1.0
        table.append(tuple(weights))
    return tuple(table)


PRIVATE = _shifted(_own_colours(0))
FAR = _shifted(_own_colours(1))


# Five rows of three pixels; each row is the sum of 4 (left), 2 and 1 (right).
_GLYPHS = {
    "a": "25755", "b": "65656", "c": "34443", "d": "65556", "e": "74647",
    "f": "74644", "g": "34553", "h": "55755", "i": "72227", "j": "11152",
    "k": "55655", "l": "44447", "m": "57755", "n": "65555", "o": "25552",
    "p": "65644", "q": "25531", "r": "65655", "s": "34216", "t": "72222",
    "u": "55553", "v": "55522", "w": "55775", "x": "55255", "y": "55222",
    "z": "71247", "0": "75557", "1": "26227", "2": "71747", "3": "71717",
    "4": "55711", "5": "74717", "6": "74757", "7": "71122", "8": "75757",
    "9": "75717",
}  # fmt: skip
HEIGHT = 7  # a rim of one pixel around the letters
_GAP = np.zeros((5, 1))
_DOTS = {
    character: np.array([[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in rows])
    for character, rows in _GLYPHS.items()
}
_DOTS[" "] = _GAP


def write(text: str) -> Float[np.ndarray, "7 width"]:
    """Return a text as pixels, 1 where there is ink, in a rim of 0.

    Args:
        text: Small letters and digits; a space is two pixels wide.
    """
    parts = [_GAP, *(part for c in text for part in (_DOTS[c], _GAP))]
    width = sum(part.shape[1] for part in parts)
    picture = np.zeros((HEIGHT, width), dtype=np.float32)
    picture[1:-1] = np.concatenate(parts, axis=1)
    return picture


TILTS = (-12.0, -6.0, 0.0, 6.0, 12.0)  # degrees
_FINE = 8  # points across a pixel
_OUTLINE = 1.6  # pixels
_Points = Float[np.ndarray, "side side"]


@cache
def stamp(
    shape: int, diameter: int, tilt: int, hollow: bool
) -> Float[np.ndarray, "diameter diameter"]:
    """Return how much of each pixel an object, or its outline, covers, from 0 to 1.

    The diameter is that of the circle in which every shape lies, in pixels; ``shape`` and
    ``tilt`` are positions in ``SHAPES`` and ``TILTS``.
    """
    from scipy.ndimage import distance_transform_edt  # slow to import

    line = (np.arange(diameter * _FINE) + 0.5) / (diameter * _FINE) * 2 - 1
    x, y = np.meshgrid(line, -line)  # y goes up
    turn = np.deg2rad(TILTS[tilt])
    along, up = np.cos(turn) * x + np.sin(turn) * y, np.cos(turn) * y - np.sin(turn) * x
    inside = _inside(SHAPES[shape], along, up)
    if hollow:
        inside = inside & (distance_transform_edt(inside) < _OUTLINE * _FINE)
    fine = inside.reshape(diameter, _FINE, diameter, _FINE)
    return fine.mean(axis=(1, 3)).astype(np.float32)


def _inside(name: str, x: _Points, y: _Points) -> Bool[np.ndarray, "side side"]:
    """Tell which points of the square from -1 to 1 lie in a shape."""
    if name == "circle":
        return np.hypot(x, y) < 0.95
    if name == "moon":
        return (np.hypot(x, y) < 0.98) & (np.hypot(x - 0.5, y - 0.1) > 0.75)
    if name == "heart":
        a, b = 1.22 * x, 1.22 * y + 0.12
        return (a**2 + b**2 - 1) ** 3 < a**2 * b**3
    if name == "cross":
        arms = (np.abs(x) < 0.28) | (np.abs(y) < 0.28)
        return arms & (np.maximum(np.abs(x), np.abs(y)) < 0.94)
    if name == "square":
        return np.maximum(np.abs(x), np.abs(y)) < 0.74
    if name == "diamond":
        return np.abs(x) / 0.66 + np.abs(y) < 1
    corners = _corners(name)
    inside = np.zeros(x.shape, dtype=bool)  # a ray to the right crosses an odd number
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, 1, axis=0), strict=True):
        if y1 != y2:
            crossing = x1 + (y - y1) / (y2 - y1) * (x2 - x1)
            inside ^= ((y1 > y) != (y2 > y)) & (x < crossing)
    return inside


def _corners(name: str) -> Float[np.ndarray, "corners 2"]:
    points = {"triangle": 3, "star": 10}[name]
    angles = np.pi / 2 + 2 * np.pi * np.arange(points) / points
    reach = np.ones(points)
    if name == "star":
        reach[1::2] = 0.42
    return np.stack([reach * np.cos(angles), reach * np.sin(angles)], axis=1)


_RGB = np.array(
    [
        (0.85, 0.08, 0.10), (0.10, 0.60, 0.15), (0.10, 0.20, 0.85), (0.98, 0.92, 0.10),
        (0.04, 0.04, 0.04), (0.99, 0.99, 0.99), (0.98, 0.52, 0.05), (0.50, 0.10, 0.65),
        (0.99, 0.60, 0.78), (0.42, 0.24, 0.08),
    ],
    dtype=np.float32,
)  # fmt: skip
assert len(_RGB) == len(COLOURS)
_STRIPED, _DOTTED, _HOLLOW = (TEXTURES.index(n) for n in TEXTURES[1:])
_PITCH = 4  # pixels from one stripe or dot to the next
_NOISE = 0.02
_Canvas = Float[np.ndarray, "64 64 3"]


def draw_pictures(
    scenes: Sequence[Scene], rng: np.random.Generator
) -> UInt8[np.ndarray, "n 3 64 64"]:
    """Draw scenes; place, tilt, shades and noise are random."""
    pictures = np.empty((len(scenes), 3, SIDE, SIDE), dtype=np.uint8)
    for picture, scene in zip(pictures, scenes, strict=True):
        canvas = _draw(scene, rng)
        canvas += _NOISE * rng.standard_normal(canvas.shape, dtype=np.float32)
        picture[:] = (canvas.clip(0, 1) * 255 + 0.5).astype(np.uint8).transpose(2, 0, 1)
    return pictures


def _draw(scene: Scene, rng: np.random.Generator) -> _Canvas:
    """Draw one scene without noise."""
    light, *tint = rng.random(4)
    canvas = np.empty((SIDE, SIDE, 3), dtype=np.float32)
    canvas[:] = 0.52 + 0.14 * light + 0.1 * (np.array(tint) - 0.5)
    places = regions(len(scene.groups), scene.arrangement)
    for group, region in zip(scene.groups, places, strict=True):
        _draw_group(group, region, canvas, rng)
    if scene.tag is not None:  # in the lower right corner
        ink = write(f"{scene.tag.letter}{scene.tag.number:02d} {scene.tag.owner}")
        canvas[SIDE - HEIGHT :, SIDE - ink.shape[1] :] = 0.05 + 0.9 * ink[:, :, None]
    return canvas


def _draw_group(
    group: Group, region: Region, canvas: _Canvas, rng: np.random.Generator
) -> None:
    front = _RGB[group.colour] + 0.04 * rng.standard_normal(3, dtype=np.float32)
    rows, columns = grid(region, group.count)
    height, width = region.height / rows, region.width / columns
    cells = rng.permutation(rows * columns)[: group.count]
    least, largest = DIAMETERS[group.size]
    chances = rng.random((group.count, 4)).tolist()
    paint = _paint(front, group.texture, largest)
    for cell, (down, right, tilt, wide) in zip(cells, chances, strict=True):
        diameter = least + int(wide * (largest - least + 1))
        row, column = divmod(int(cell), columns)
        top = region.top + row * height + down * (height - diameter - 0.5)
        left = region.left + column * width + right * (width - diameter - 0.5)
        hollow = group.texture == _HOLLOW
        mask = stamp(group.shape, diameter, int(tilt * len(TILTS)), hollow)
        y, x = int(top), int(left)
        patch = canvas[y : y + diameter, x : x + diameter]
        patch += mask[:, :, None] * (paint[:diameter, :diameter] - patch)


def _paint(
    front: Float[np.ndarray, " 3"], texture: int, diameter: int
) -> Float[np.ndarray, "#diameter #diameter 3"]:
    """Return an object's colour at every pixel."""
    if texture not in (_STRIPED, _DOTTED):
        return front[None, None]
    light = front.mean() > 0.5
    second = 0.3 * front if light else 0.1 * front + 0.9
    band = np.arange(diameter) % _PITCH < _PITCH // 2
    marked = band[:, None] & (band | (texture == _STRIPED))
    return np.where(marked[:, :, None], second, front)
