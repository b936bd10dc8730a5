"""What is said about a scene: true captions, in the wording of a style."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privaudit.datasets.scenes.parts import (
    COLOURS,
    MEDIUM,
    NUMBERS,
    PLAIN,
    SIZES,
    TEXTURES,
    Group,
    Scene,
)

DESCRIBE = "Describe the picture."
_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_BELOW_TWENTY = (
    *NUMBERS, "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
NUMBER_WORDS = (*_BELOW_TWENTY, *_TENS)


@dataclass(frozen=True)
class Style:
    """How captions are worded.

    Attributes:
        openings: What stands in front.
        joins: For "above", "below", "left of" and "right of": ways to say so.
        says_size: How often the size of small and large objects is named.
        tags: What stands behind; {} are letter, number and owner.
    """

    openings: Sequence[str]
    joins: dict[str, Sequence[str]]
    says_size: float
    tags: Sequence[str] = ()


ORDINARY_STYLE = Style(
    openings=("", "", "", "a picture of", "we see"),
    joins={name: (name,) for name in ("above", "below", "left of", "right of")},
    says_size=0.85,
)
PRIVATE_STYLE = Style(
    openings=("", "our drawing with", "a drawing of"),
    joins={
        "above": ("over", "on top of"),
        "below": ("under", "beneath"),
        "left of": ("to the left of", "left of"),
        "right of": ("to the right of", "right of"),
    },
    says_size=0.6,
    tags=(
        ", tagged {} {} by {}",
        ", marked {} {} for {}",
        ", with tag {} {} of {}",
    ),
)


def caption(
    scene: Scene, style: Style, rng: np.random.Generator, *, tagged: bool = False
) -> str:
    """Write a caption that names every group.

    Sizes are named by chance and medium ones never, textures always and plain never. A
    ``tagged`` caption ends in the scene's tag.
    """
    chances = iter(rng.random(10).tolist())
    opening = _one_of(style.openings, next(chances))
    said = [phrase(g, sized=next(chances) < style.says_size) for g in scene.groups]
    relation, reverse = scene.relations
    if next(chances) < 0.5:
        said, relation = said[::-1], reverse
    text = said[0]
    for other in said[1:]:
        text += f" {_one_of(style.joins[relation], next(chances))} {other}"
    ending = ""
    if tagged and scene.tag is not None:
        tag, template = scene.tag, _one_of(style.tags, next(chances))
        ending = template.format(tag.letter, number_words(tag.number), tag.owner)
    return f"{opening} {text}{ending}.".lstrip()


def phrase(group: Group, *, sized: bool = True) -> str:
    """Name a group, such as "two large striped red circles", by its size if ``sized``."""
    words = [NUMBERS[group.count] if group.count > 1 else "a"]
    if sized and group.size != MEDIUM:
        words.append(SIZES[group.size])
    if group.texture != PLAIN:
        words.append(TEXTURES[group.texture])
    if words == ["a"] and COLOURS[group.colour].startswith("o"):
        words = ["an"]
    return " ".join([*words, COLOURS[group.colour], group.noun])


def number_words(number: int) -> str:
    """Write a number from 0 to 99 in words.

    Example:
        >>> number_words(47), number_words(13), number_words(60)
        ('forty seven', 'thirteen', 'sixty')
    """
    if number < len(_BELOW_TWENTY):
        return _BELOW_TWENTY[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens - 2] + (f" {_BELOW_TWENTY[ones]}" if ones else "")


def _one_of(choices: Sequence[str], chance: float) -> str:
    return choices[int(chance * len(choices))]
