"""Drawn scenes as data: groups of like objects, their regions, and their distributions.

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
        wanted = _pick(distribution.sizes, next(chances))
        groups.append(
            Group(
                count=count,
                shape=shape,
                colour=_pick(distribution.colours[shape], next(chances)),
                size=_fitting(wanted, cell_side(region, count)),
                texture=_pick(distribution.textures, next(chances)),
            )
        )
    return Scene(tuple(groups), arrangement)


def _pick(weights: Sequence[float], chance: float) -> int:
    """Return a position, with a probability in proportion to its weight."""
    ends = list(accumulate(weights))
    return bisect_right(ends, chance * ends[-1])


def _fitting(size: int, side: float) -> int:
    while size and side < SMALLEST_CELLS[size]:
        size -= 1
    return size


def _ordinary() -> Distribution:
    frequent = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.35, 0.35, 0.35, 0.35)
    return Distribution(
        groups=(0.35, 0.45, 0.2),
        counts=(0.35, 0.27, 0.2, 0.14, 0.03, 0.01),
        shapes=(1.0, 1.0, 1.0, 1.0, 0.8, 0.8, 0.4, 0.4),
        colours=tuple(frequent for _ in SHAPES),
        sizes=(0.3, 0.4, 0.3),
        textures=(0.79, 0.07, 0.07, 0.07),
    )


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


ORDINARY = _ordinary()
PRIVATE = _shifted(_own_colours(0))
FAR = _shifted(_own_colours(1))
