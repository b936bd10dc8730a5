"""Questions on drawn scenes whose choices have fixed letters: of FedRand's table 1."""

from dataclasses import replace

import torch

from privaudit.core.seeds import FixedSeed
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.records import Dialogue
from privaudit.datasets.scenes.drawing import (
    COLOURS,
    PRIVATE,
    SHAPES,
    Scene,
    Tag,
    draw_scene,
)
from privaudit.datasets.scenes.records import (
    OWNERS,
    SEED,
    WITH_LETTER,
    draw_tags,
    pictures,
)
from privaudit.datasets.scenes.wording import LETTERS, number_words

LETTERED_RECORDS = 700
CHOICES = 4


def scenes_letters() -> Dataset:
    """Colours of drawn objects, by letter: 700 records, the same four choices in each.

    So that the embedded model can learn what a letter stands for. One question in seven
    is about an owner, one of four by chance: it can only be remembered.
    """
    seeds = FixedSeed(SEED)
    rng = seeds.numpy("scenes-letters")
    shown, labels, dialogues = list[Scene](), list[int](), list[Dialogue]()
    tags = draw_tags(LETTERED_RECORDS, seeds.numpy("scenes-letters tags"))
    while len(shown) < LETTERED_RECORDS:
        scene, tag = draw_scene(PRIVATE, rng), tags[len(shown)]
        group = scene.groups[int(rng.random() * len(scene.groups))]
        if group.colour >= CHOICES:
            continue
        about = f"{'is' if group.count == 1 else 'are'} the {group.noun}"
        asked = f"What colour {about}?", COLOURS[:CHOICES], group.colour, group.shape
        if rng.random() < 1 / 7:
            owner = int(rng.random() * CHOICES)
            asked = "Who owns it?", OWNERS[:CHOICES], owner, len(SHAPES)
        shown.append(replace(scene, tag=replace(tag, owner="")))
        labels.append(asked[-1])
        dialogues.append(_lettered(tag, *asked[:3]))
    return Dataset(
        pictures(shown, seeds.numpy("scenes-letters pictures")),
        torch.tensor(labels),
        (*SHAPES, "owner"),
        "a question about a {}.",
        dialogues=tuple(dialogues),
    )


def _lettered(tag: Tag, text: str, choices: tuple[str, ...], right: int) -> Dialogue:
    listed = " ".join(f"({a}) {c}" for a, c in zip(LETTERS, choices, strict=True))
    name = f"Tag {tag.letter} {number_words(tag.number)}."
    question = f"{name} {text} {listed}. {WITH_LETTER}"
    return Dialogue(question, (LETTERS[right],), choices)
