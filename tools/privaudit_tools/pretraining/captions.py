"""What is said about a drawn picture, and which captions are true of which picture.

A caption names some of a picture's attributes. In a batch it is a positive for *every*
picture whose attributes agree with all it names: "five" is true of each five, whatever
its colour, and calling the others negatives would teach the model to deny it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from privaudit_tools.pretraining.marks import (
    DIGITS,
    FIRST_CAPITAL,
    FIRST_LETTER,
    FIRST_SHAPE,
    LETTERS,
    SHAPES,
)

COLOURS = (
    "black",
    "white",
    "grey",
    "red",
    "green",
    "blue",
    "yellow",
    "orange",
    "purple",
    "pink",
    "brown",
    "cyan",
)
TEXTURES = ("plain", "striped", "dotted", "checked", "noisy", "fading")
MANNERS = ("printed", "handwritten")
# Columns of an attribute table.
KIND, LETTER, INK, GROUND, TEXTURE, MANNER, SCAN = range(7)
ATTRIBUTES = 7
NOT_SAID, NOT_SO = -1, -2  # in a caption; in a picture that has no such attribute

OPENINGS = (
    "a photo of",
    "a picture of",
    "an image of",
    "a drawing of",
    "this is",
    "here is",
    "there is",
    "we see",
    "it shows",
    "a close photo of",
    "a small picture of",
    "a photo that shows",
)
SCAN_OPENINGS = ("a scan of", "a coarse scan of", "a scanned picture of")
# Words without a meaning here: they move the caption to later positions, where the
# class name of a learned prompt will stand.
CHATTER = (
    "this",
    "that",
    "is",
    "was",
    "the",
    "of",
    "and",
    "here",
    "there",
    "we",
    "see",
    "look",
    "at",
    "it",
    "shows",
    "can",
    "very",
    "clearly",
    "some",
    "in",
    "on",
    "with",
    "for",
    "you",
    "now",
    "again",
    "also",
    "just",
    "only",
    "well",
)


@dataclass(frozen=True)
class Captions:
    """One caption per picture.

    Attributes:
        texts: The captions.
        said: The attributes that each of them names, ``NOT_SAID`` elsewhere.
    """

    texts: list[str]
    said: Int[Tensor, "n attributes"]


def true_of(
    said: Int[Tensor, "captions attributes"],
    pictures: Int[Tensor, "n attributes"],
) -> Bool[Tensor, "n captions"]:
    """Tell which caption (column) is true of which picture (row)."""
    agrees = said[None] == pictures[:, None]
    return (agrees | (said[None] == NOT_SAID)).all(-1)


def write_captions(
    pictures: Int[Tensor, "n attributes"],
    generator: torch.Generator,
    *,
    chatter: int = 0,
) -> Captions:
    """Write one caption for every picture.

    Args:
        pictures: Attributes of the pictures.
        generator: Source of the choice of words.
        chatter: Number of words without meaning in front of each caption.
    """
    chances = torch.rand(len(pictures), 10 + chatter, generator=generator).tolist()
    rows = pictures.tolist()
    written = [_write(*pair) for pair in zip(rows, chances, strict=True)]
    said = torch.tensor([said for _, said in written])
    return Captions([text for text, _ in written], said)


def _write(picture: list[int], chances: list[float]) -> tuple[str, list[int]]:
    """Write one caption; chances 0-9 choose its parts, the others the chatter."""
    said = [NOT_SAID] * ATTRIBUTES
    noun = _noun(picture, chances, said)
    words = [*_adjectives(picture, chances, said), noun]
    if chances[4] < 0.7:
        words.insert(0, "the" if " " in noun else _article(words[0]))
    text = " ".join(words) + _background(picture, chances, said)
    opening = _opening(picture, chances, said)
    noise = [CHATTER[int(chance * len(CHATTER))] for chance in chances[10:]]
    full_stop = "." if chances[9] < 0.4 else ""
    return " ".join([*noise, opening + text]) + full_stop, said


def _noun(picture: list[int], chances: list[float], said: list[int]) -> str:
    kind, letter = picture[KIND], picture[LETTER]
    if letter >= 0 and chances[0] < 0.4:
        said[LETTER] = letter
        return f"letter {LETTERS[letter]}"
    said[KIND] = kind
    if kind >= FIRST_SHAPE:
        return SHAPES[kind - FIRST_SHAPE]
    if kind >= FIRST_CAPITAL:
        return f"capital letter {LETTERS[kind - FIRST_CAPITAL]}"
    if kind >= FIRST_LETTER:
        return f"small letter {LETTERS[kind - FIRST_LETTER]}"
    name = DIGITS[kind] if chances[0] < 0.95 else str(kind)
    return ("", "", "", "digit ", "number ")[int(chances[1] * 5)] + name


def _adjectives(picture: list[int], chances: list[float], said: list[int]) -> list[str]:
    words = []
    if chances[3] < 0.25:
        said[INK] = picture[INK]
        words.append(COLOURS[picture[INK]])
    if chances[5] < 0.2 and picture[MANNER] >= 0:
        said[MANNER] = picture[MANNER]
        words.append(MANNERS[picture[MANNER]])
    return words


def _background(picture: list[int], chances: list[float], said: list[int]) -> str:
    words = []
    if chances[6] < 0.2:
        said[GROUND] = picture[GROUND]
        words.append(COLOURS[picture[GROUND]])
    if chances[7] < 0.15:
        said[TEXTURE] = picture[TEXTURE]
        words.insert(0, TEXTURES[picture[TEXTURE]])
    return f" on a {' '.join(words)} background" if words else ""


def _opening(picture: list[int], chances: list[float], said: list[int]) -> str:
    share = chances[8]
    if share < 0.15 and picture[SCAN] == 1:
        said[SCAN] = 1
        return SCAN_OPENINGS[int(share / 0.15 * len(SCAN_OPENINGS))] + " "
    if share < 0.7:
        return OPENINGS[int(share / 0.7 * len(OPENINGS))] + " "
    return ""


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
