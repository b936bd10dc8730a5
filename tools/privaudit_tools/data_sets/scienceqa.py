"""ScienceQA: multiple-choice questions about pictures, by topic.

Source: Lu, Mishra, Xia, Qiu, Chang, Zhu, Tafjord, Clark, Kalyan, "Learn to explain:
multimodal reasoning via thought chains for science question answering", NeurIPS 2022.
"""

from collections import Counter
from pathlib import Path

import torch
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from privaudit.core.errors import DatasetError
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.images.picture_files import (
    PARTS,
    number,
    pictures_of,
    require_classes,
)
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import OnDisk
from privaudit.datasets.text.question_texts import multiple_choice
from privaudit.statistics.captions.answers import LETTERS


class _ListedQuestion(TypedDict):  # an entry of problems.json
    question: str
    choices: list[str]
    answer: int
    hint: str
    image: str | None
    topic: str


class _SplitFile(TypedDict):  # what counts of pid_splits.json
    train: list[str]
    val: list[str]
    test: list[str]


PROBLEMS = TypeAdapter(dict[str, _ListedQuestion])
SPLIT = TypeAdapter(_SplitFile)


def read_scienceqa(path: Path) -> Dataset:
    """Read the questions that have a picture; those without are left out.

    The question is written out as context, question and choices behind letters; the
    answer is the letter, and the label is the topic.
    """
    problems = read_checked(path / "problems.json", PROBLEMS)
    chosen = _pictured(problems, path)
    labels, topics = number([problems[pid]["topic"] for _, pid in chosen])
    require_classes(labels, topics, path / "problems.json")
    files = [f"{part}/{pid}/{problems[pid]['image']}" for part, pid in chosen]
    return Dataset(
        pictures_of(path, files),
        labels,
        topics,
        split=torch.tensor([PARTS[part] for part, _ in chosen]),
        dialogues=tuple(_dialogue(pid, problems[pid], path) for _, pid in chosen),
    )


SCIENCEQA = OnDisk(
    summary="ScienceQA: multiple-choice questions about images, by topic.",
    needs="problems.json, pid_splits.json and the images, extracted, as "
    "train/NUMBER/image.png and so below val/ and test/, there or in images/",
    source="Take problems.json and pid_splits.json from data/scienceqa of "
    "https://github.com/lupantech/ScienceQA and download train.zip, val.zip and "
    "test.zip as its README tells",
    folders=("ScienceQA",),
    read=read_scienceqa,
)


def _pictured(
    problems: dict[str, _ListedQuestion], path: Path
) -> list[tuple[str, str]]:
    """Return part and number of each question with a picture, in the split's order."""
    split = read_checked(path / "pid_splits.json", SPLIT)
    parts = (("train", split["train"]), ("val", split["val"]), ("test", split["test"]))
    listed = [(part, pid) for part, pids in parts for pid in pids]
    again = [
        pid for pid, times in Counter(pid for _, pid in listed).items() if times > 1
    ]
    if again:
        raise DatasetError(
            f"{path / 'pid_splits.json'} names the question {again[0]} more than once, and "
            "a record is in one part. Get it again."
        )
    gone = next((pid for _, pid in listed if pid not in problems), None)
    if gone is not None:
        raise DatasetError(
            f"{path / 'pid_splits.json'} names the question {gone}, which is not among "
            f"the {len(problems)} of problems.json. Get both again."
        )
    pictured = [(part, pid) for part, pid in listed if problems[pid]["image"]]
    if not pictured:
        raise DatasetError(
            f"None of the {len(listed)} questions in {path} has a picture. Get "
            "problems.json again."
        )
    return pictured


def _dialogue(pid: str, problem: _ListedQuestion, path: Path) -> Dialogue:
    where, choices = f"Question {pid} of {path / 'problems.json'}", problem["choices"]
    if not 0 <= problem["answer"] < min(len(choices), len(LETTERS)):
        raise DatasetError(
            f"{where} has {len(choices)} choices, and its answer is number "
            f"{problem['answer']}. They count from 0. Get it again."
        )
    letter = LETTERS[problem["answer"]]
    return multiple_choice(problem["question"], choices, letter, where, problem["hint"])
