"""Small data sets of texts and of pictures, with classes, questions and answers."""

from itertools import product

import torch

from privaudit.datasets.dataset import Dataset, PixelImages, Texts
from privaudit.datasets.dialogues import Dialogue
from tests.small_transformers import ANSWERS, NAMES

SUBJECTS = ("film", "play", "song")
KINDS = (("good", "bright"), ("bad", "dull"), ("calm", "long"))


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
