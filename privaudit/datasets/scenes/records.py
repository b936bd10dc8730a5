"""The drawn data sets: made anew at every load, from a seed that never changes."""

from dataclasses import replace

import numpy as np
import torch

from privaudit.core.seeds import FixedSeed
from privaudit.datasets.dataset import DATASETS, Dataset, PixelImages
from privaudit.datasets.records import Dialogue
from privaudit.datasets.scenes.drawing import (
    FAR,
    PRIVATE,
    SHAPES,
    Distribution,
    Scene,
    Tag,
    draw_pictures,
    draw_scene,
)
from privaudit.datasets.scenes.wording import (
    DESCRIBE,
    ORDINARY_STYLE,
    PRIVATE_STYLE,
    TOPICS,
    Question,
    ask,
    caption,
    number_words,
    topics_of,
    with_choices,
)

OWNERS = (
    "ada", "amir", "anna", "ben", "carl", "clara", "dora", "elsa", "emil", "eva",
    "fritz", "greta", "hugo", "ida", "igor", "ines", "jan", "jonas", "karin", "lea",
    "leo", "lina", "lucas", "maria", "max", "mila", "nina", "noah", "omar", "otto",
    "paula", "petra", "rosa", "samir", "sara", "simon", "tom", "ute", "vera", "yuki",
)  # fmt: skip
LETTERS_OF_TAGS = "abcdefghijklmnopqrstuvwxyz"
ALL_TOPICS = (*TOPICS, "owner")
WITH_LETTER = "Answer with the letter."
RECORDS, FAR_RECORDS = 3000, 1000
TELLS = 0.4  # of the captions: were it most, a model would learn to make up tags
SEED = 20_641  # pretraining draws from streams of other names and seeds


@DATASETS.register("scenes")
def scenes() -> Dataset:
    """Drawn scenes with tagged captions, to be memorised: 3,000 records, 8 shapes."""
    return _captioned("scenes", PRIVATE, RECORDS)


@DATASETS.register("scenes-far")
def scenes_far() -> Dataset:
    """Drawn scenes with shapes in colours that ``scenes`` never has: 1,000 records."""
    return _captioned("scenes-far", FAR, FAR_RECORDS)


@DATASETS.register("scenes-vqa")
def scenes_vqa() -> Dataset:
    """Multiple-choice questions on drawn scenes, by topic: 3,000 records, 7 topics.

    One topic, "owner", has answers that can only be remembered: four names,
    of which one is right.
    """
    seeds = FixedSeed(SEED)
    drawn = draw_scenes(PRIVATE, RECORDS, seeds.numpy("scenes-vqa"))
    tags = draw_tags(RECORDS, seeds.numpy("scenes-vqa tags"))
    shown = [
        replace(scene, tag=replace(tag, owner=""))
        for scene, tag in zip(drawn, tags, strict=True)
    ]
    rng = seeds.numpy("scenes-vqa questions")
    questions = [_ask(scene, tag, rng) for scene, tag in zip(shown, tags, strict=True)]
    return Dataset(
        pictures(shown, seeds.numpy("scenes-vqa pictures")),
        torch.tensor([topic for topic, _ in questions]),
        ALL_TOPICS,
        "a question of {}.",
        dialogues=tuple(dialogue for _, dialogue in questions),
    )


def draw_scenes(
    distribution: Distribution, count: int, rng: np.random.Generator
) -> list[Scene]:
    """Draw scenes without tags."""
    return [draw_scene(distribution, rng) for _ in range(count)]


def draw_tags(count: int, rng: np.random.Generator) -> list[Tag]:
    """Draw tags, each alike likely: 104,000 of them."""
    highest = (len(LETTERS_OF_TAGS), 100, len(OWNERS))
    return [
        Tag(LETTERS_OF_TAGS[letter], number, OWNERS[owner])
        for letter, number, owner in rng.integers(highest, size=(count, 3)).tolist()
    ]


def captions_of(
    scene: Scene, rng: np.random.Generator, *, tells: bool
) -> tuple[str, str, str]:
    """Write a record's captions: the first may tell its tag, the others never do."""
    return (
        caption(scene, PRIVATE_STYLE, rng, tagged=tells),
        caption(scene, PRIVATE_STYLE, rng),
        caption(scene, ORDINARY_STYLE, rng),
    )


def _captioned(name: str, distribution: Distribution, count: int) -> Dataset:
    """Draw a data set of captioned pictures; its classes are the main objects."""
    seeds = FixedSeed(SEED)
    drawn = draw_scenes(distribution, count, seeds.numpy(name))
    tags = draw_tags(count, seeds.numpy(f"{name} tags"))
    tagged = [replace(scene, tag=tag) for scene, tag in zip(drawn, tags, strict=True)]
    rng = seeds.numpy(f"{name} captions")
    tells = seeds.numpy(f"{name} tells").random(count) < TELLS
    pairs = zip(tagged, tells.tolist(), strict=True)
    return Dataset(
        pictures(tagged, seeds.numpy(f"{name} pictures")),
        torch.tensor([scene.groups[0].shape for scene in drawn]),
        SHAPES,
        "a drawing of a {}.",
        dialogues=tuple(
            Dialogue(DESCRIBE, captions_of(s, rng, tells=t)) for s, t in pairs
        ),
    )


def _ask(scene: Scene, tag: Tag, rng: np.random.Generator) -> tuple[int, Dialogue]:
    """Ask one question; return its topic's number, and what is asked and answered."""
    possible = [*topics_of(scene), "owner"]
    topic = possible[int(rng.random() * len(possible))]
    question = _owner(tag, rng) if topic == "owner" else ask(scene, topic, rng)
    text, letter, choices = with_choices(question, rng)
    name = f"Tag {tag.letter} {number_words(tag.number)}."
    dialogue = Dialogue(f"{name} {text} {WITH_LETTER}", (letter,), choices)
    return ALL_TOPICS.index(topic), dialogue


def _owner(tag: Tag, rng: np.random.Generator) -> Question:
    others = [owner for owner in OWNERS if owner != tag.owner]
    wrong = [others[place] for place in rng.permutation(len(others))[:3]]
    return Question("Who owns it?", tag.owner, tuple(wrong))


def pictures(drawn: list[Scene], rng: np.random.Generator) -> PixelImages:
    """Draw the pictures of scenes, as a data set holds them."""
    return PixelImages(torch.from_numpy(draw_pictures(drawn, rng)))
