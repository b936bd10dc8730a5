"""Where the groups of a scene lie, and how large an object can be there."""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from privaudit.datasets.scenes.parts import Arrangement

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
