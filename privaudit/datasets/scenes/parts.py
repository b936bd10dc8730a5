"""What drawn scenes are made of: groups of like objects, in rows or in columns."""

from dataclasses import dataclass
from typing import Literal

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
