"""Small data sets of texts and of pictures, with classes, questions and answers."""

from hashlib import sha256
from itertools import product
from typing import Any

import torch
from torch import Tensor

from privaudit.datasets.dataset import Dataset, PixelImages, Texts
from privaudit.datasets.records import Dialogue
from tests.small_transformers import ANSWERS, NAMES

RAGGED = ((20, 40), (16, 16), (64, 48))
SUBJECTS = ("film", "play", "song")
KINDS = (("good", "bright"), ("bad", "dull"), ("calm", "long"))
SMALL_RUN: dict[str, Any] = {  # on one of these
    "seed": 0,
    "clients": 2,
    "rounds": 1,
    "participation": 1.0,
    "partition": "dirichlet",
    "measured_rounds": 1,
}


def text_data(count: int = 60) -> Dataset:
    """Return pairs of texts, of three classes; a question and an answer about each."""
    rows = list(product(range(3), SUBJECTS, (0, 1), ("it", "this", "who")))
    texts, labels, dialogues = [], [], []
    for number in range(count):
        label, subject, which, start = rows[number * 7 % len(rows)]
        word = KINDS[label][which]
        first = f"{start} was a {'very ' * (number % 3)}{word} {subject}"
        texts.append((first, f"the {subject} was {word}") if number % 2 else (first,))
        labels.append(label)
        dialogues.append(Dialogue(f"{first} what is it", (ANSWERS[label],), ANSWERS))
    found = torch.tensor(labels)
    return Dataset(Texts(tuple(texts)), found, NAMES, dialogues=tuple(dialogues))


def picture_data(count: int = 60) -> Dataset:
    """Return pictures of three classes; a question and an answer about each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    pixels = 0.5 * torch.rand(count, 3, 20, 20, generator=generator)
    pixels[torch.arange(count), labels] += 0.4
    asked = tuple(Dialogue("what is it", (ANSWERS[i],), ANSWERS) for i in labels)
    return Dataset(PixelImages(pixels), labels, NAMES, "a {}", dialogues=asked)


class RaggedPictures:
    """Pictures of three sizes in turn, each with the colour of its class."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._pictures = []
        for number in range(count):
            size = (3, *RAGGED[number % 3])
            picture = torch.randint(0, 128, size, generator=generator)
            picture[number % 3] += 100
            self._pictures.append(picture.to(torch.uint8))

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Tensor:
        return self._pictures[index]

    @property
    def contents(self) -> list[bytes]:
        return [sha256(one.numpy().tobytes()).digest() for one in self._pictures]

    @property
    def digest(self) -> str:
        return sha256(b"".join(self.contents)).hexdigest()


def ragged_data(count: int) -> Dataset:
    """Return pictures of three sizes, and a question and an answer about each."""
    answers = ("a red square", "yes", "a blue circle and a red square")
    asked = tuple(Dialogue("what is it?", (answers[i % 3],)) for i in range(count))
    labels = torch.arange(count) % 3
    return Dataset(RaggedPictures(count), labels, ("a", "b", "c"), dialogues=asked)
