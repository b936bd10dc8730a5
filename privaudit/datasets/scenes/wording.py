"""Wording of scenes: true captions in a style, and questions by topic with a short true answer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from privaudit.datasets.scenes.drawing import (
    COLOURS,
    LARGEST_COUNT,
    MEDIUM,
    NUMBERS,
    PLAIN,
    PLURALS,
    SHAPES,
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
    tags=(", tagged {} {} by {}", ", marked {} {} for {}", ", with tag {} {} of {}"),
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


LETTERS = "ABCD"
_ABSENT = 0.1  # share of counting questions about a shape that is not there


@dataclass(frozen=True)
class Question:
    """A question with one right answer.

    Attributes:
        others: Wrong answers of the same kind, the likeliest first.
    """

    text: str
    answer: str
    others: tuple[str, ...]


Asking = Callable[[Scene, np.random.Generator], Question]


def ask(scene: Scene, topic: str, rng: np.random.Generator) -> Question:
    """Ask about a scene, by one of :func:`topics_of` it."""
    return _ASKING[topic](scene, rng)


def topics_of(scene: Scene) -> list[str]:
    """Return the topics that have a question, in the order of ``TOPICS``."""
    several = len(scene.groups) > 1
    own_colour = bool(_with_own_colour(scene))
    return [
        topic
        for topic in TOPICS
        if (topic != "position" or several) and (topic != "shape" or own_colour)
    ]


def with_choices(
    question: Question, rng: np.random.Generator, count: int = 4
) -> tuple[str, str, tuple[str, ...]]:
    """Turn a question into one of multiple choice."""
    wrong = question.others[: min(count, len(LETTERS)) - 1]
    choices = [question.answer, *wrong]
    choices = [choices[place] for place in rng.permutation(len(choices))]
    letter = LETTERS[choices.index(question.answer)]
    listed = " ".join(f"({a}) {c}" for a, c in zip(LETTERS, choices, strict=False))
    return f"{question.text} {listed}.", letter, tuple(choices)


def _some(scene: Scene, rng: np.random.Generator) -> Group:
    return scene.groups[int(rng.random() * len(scene.groups))]


def _shuffled(
    names: Iterable[str], right: str, rng: np.random.Generator
) -> tuple[str, ...]:
    """Return the wrong names in random order."""
    wrong = [name for name in names if name != right]
    return tuple(wrong[place] for place in rng.permutation(len(wrong)))


def _counting(scene: Scene, rng: np.random.Generator) -> Question:
    group = _some(scene, rng)
    shape, count, colour = group.shape, group.count, f"{COLOURS[group.colour]} "
    absent = sorted(set(range(len(SHAPES))) - {g.shape for g in scene.groups})
    chance = rng.random(2)
    if chance[0] < _ABSENT:
        shape, count = absent[int(chance[1] * len(absent))], 0
    said = "" if count == 0 or chance[0] < 0.5 else colour
    least = max(0, min(count - int(chance[1] * 4), LARGEST_COUNT - 3))
    near = (NUMBERS[n] for n in range(least, least + 4))
    text = f"How many {said}{PLURALS[shape]} are there?"
    return Question(text, NUMBERS[count], _shuffled(near, NUMBERS[count], rng))


def _one_group(
    one: str, several: str, names: Sequence[str], number: Callable[[Group], int]
) -> Asking:
    """Ask about one group, beginning as is right for one object or several."""

    def asking(scene: Scene, rng: np.random.Generator) -> Question:
        group = _some(scene, rng)
        text = f"What {one if group.count == 1 else several} the {group.noun}?"
        return _of_names(text, group, names, number, scene, rng)

    return asking


def _shape(scene: Scene, rng: np.random.Generator) -> Question:
    groups = _with_own_colour(scene)
    group = groups[int(rng.random() * len(groups))]
    text = f"Which shape is {COLOURS[group.colour]}?"
    return _of_names(text, group, SHAPES, lambda g: g.shape, scene, rng)


def _position(scene: Scene, rng: np.random.Generator) -> Question:
    """Ask what is next to a group where only one group can be meant."""
    groups = scene.groups
    relation, reverse = scene.relations
    reference = groups[0] if len(groups) == 2 else groups[1]
    pairs = [(reference, groups[-1], reverse)]
    pairs.append((groups[1], groups[0], relation))
    known, wanted, said = pairs[int(rng.random() * 2)]
    text = f"Which shape is {said} the {known.noun}?"
    question = _of_names(text, wanted, SHAPES, lambda g: g.shape, scene, rng)
    others = tuple(name for name in question.others if name != SHAPES[known.shape])
    return Question(text, question.answer, others)


def _of_names(
    text: str,
    group: Group,
    names: Sequence[str],
    number: Callable[[Group], int],
    scene: Scene,
    rng: np.random.Generator,
) -> Question:
    """Ask for one of ``names``; what other groups have is the likeliest mistake."""
    right = names[number(group)]
    present = [names[number(g)] for g in scene.groups]
    wrong = _shuffled(names, right, rng)
    return Question(text, right, tuple(sorted(wrong, key=lambda n: n not in present)))


def _with_own_colour(scene: Scene) -> list[Group]:
    colours = [group.colour for group in scene.groups]
    return [group for group in scene.groups if colours.count(group.colour) == 1]


_ASKING: dict[str, Asking] = {
    "counting": _counting,
    "colour": _one_group("colour is", "colour are", COLOURS, lambda g: g.colour),
    "shape": _shape,
    "size": _one_group("size is", "size are", SIZES, lambda g: g.size),
    "texture": _one_group("pattern has", "pattern have", TEXTURES, lambda g: g.texture),
    "position": _position,
}
TOPICS = tuple(_ASKING)
