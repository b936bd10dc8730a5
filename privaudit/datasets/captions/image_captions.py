"""Your pictures with captions, or with questions and answers, in a folder."""

import json
from pathlib import Path
from typing import Any, NotRequired

import torch
from jaxtyping import Int
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from privaudit.core.errors import DatasetError
from privaudit.core.limits import read_lines
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.files.checked_json import parse_checked
from privaudit.datasets.images.picture_files import number, part_of, pictures_of
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import on_disk, only_file
from privaudit.datasets.text.question_texts import DESCRIBE, multiple_choice

ONE_CLASS = "picture"


class _CaptionLine(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    image: str
    question: NotRequired[str]
    answer: NotRequired[str | list[str]]
    captions: NotRequired[str | list[str]]
    choices: NotRequired[list[str]]
    label: NotRequired[str]
    split: NotRequired[str]


LINE = TypeAdapter(_CaptionLine)
KEYS = tuple(_CaptionLine.__annotations__)


@on_disk(
    "image-captions",
    summary="Your images with captions, or with questions and answers.",
    needs='metadata.jsonl, with a line such as {"image": "1.jpg", "captions": '
    '["A dog."], "label": "dog"} or {"image": "1.jpg", "question": "What is it?", '
    '"answer": "a dog"} for each image, and the images beside it, in a folder '
    "or an archive",
    source="Write such a list",
)
def read_image_captions(path: Path, question: str = DESCRIBE) -> Dataset:
    """Read a list with one JSON object in each line, and the pictures beside it.

    A line has ``image``, a file; ``captions``, one or a list, or ``answer``, one or a
    list, of which the first is trained on; and if you like ``question``, ``choices``
    (of which the answer is one, by letter or text), ``label`` (by which records are
    split among clients) and ``split`` (train, val or test). Choices are written behind
    the question, and the answer is then the letter. Where a line asks nothing,
    ``question`` is asked.
    """
    missing = (
        f"There is no metadata.jsonl in {path}. Write one line for each picture, "
        'such as {"image": "1.jpg", "captions": ["A dog."]}.'
    )
    file = only_file(path, "*.jsonl", missing)
    lines = _read_lines(file)
    dialogues = tuple(_dialogue(line, question, where) for where, line in lines)
    label_texts = _column(lines, "label") or [ONE_CLASS] * len(lines)
    labels, class_names = number(label_texts)
    pictures = pictures_of(file.parent, [line["image"] for _, line in lines])
    return Dataset(
        pictures, labels, class_names, split=_split(lines), dialogues=dialogues
    )


def _read_lines(file: Path) -> list[tuple[str, _CaptionLine]]:
    """Return each line with its name in errors; blank lines do not count."""
    parsed = []
    for count, content in enumerate(read_lines(file), start=1):
        if content.strip():
            where = f"Line {count} of {file}"
            _refuse_unknown(content, where)
            parsed.append((where, parse_checked(content, LINE, where)))
    if not parsed:
        raise DatasetError(f"{file} is empty. Write one line for each picture.")
    return parsed


def _refuse_unknown(content: bytes, where: str) -> None:
    """Name a key that is none; what is no object at all is for the form to refuse."""
    try:
        keys: Any = json.loads(content)
    except (ValueError, RecursionError):
        return
    unknown = [key for key in keys if key not in KEYS] if isinstance(keys, dict) else []
    if unknown:
        raise DatasetError(
            f"{where} has the key {unknown[0]!r}. There are {', '.join(KEYS)}: take "
            "one of these, or leave it out."
        )


def _dialogue(line: _CaptionLine, question: str, where: str) -> Dialogue:
    prompt = line.get("question", question)
    if ("answer" in line) == ("captions" in line):
        problem = "both answer and" if "answer" in line else "neither answer nor"
        raise DatasetError(f"{where} has {problem} captions. Give one of the two.")
    given = line["answer"] if "answer" in line else line["captions"]
    answers = (given,) if isinstance(given, str) else tuple(given)
    if not answers or not all(text.strip() for text in (prompt, *answers)):
        raise DatasetError(
            f"{where} asks {prompt!r} and has the answers {list(answers)}: nothing of "
            "that may be blank, and there must be an answer. Write one, or take the "
            "line out."
        )
    if "choices" not in line:
        return Dialogue(prompt.strip(), tuple(text.strip() for text in answers))
    if len(answers) > 1:
        raise DatasetError(
            f"{where} has choices and {len(answers)} answers. Give the one that is "
            "right."
        )
    return multiple_choice(prompt, line["choices"], answers[0], where)


def _column(lines: list[tuple[str, _CaptionLine]], key: str) -> list[str]:
    """Return what all lines say, or nothing if none does."""
    values: list[str] = [str(line.get(key, "")).strip() for _, line in lines]
    if not any(values):
        return []
    if "" in values:
        raise DatasetError(
            f"{lines[values.index('')][0]} has no {key}, and "
            f"{sum(map(bool, values))} of {len(values)} lines have one. Give it to "
            "all, or to none."
        )
    return values


def _split(lines: list[tuple[str, _CaptionLine]]) -> Int[Tensor, " n"] | None:
    splits = zip(_column(lines, "split"), lines, strict=False)  # of none, or of all
    parts = [part_of(text, where) for text, (where, _) in splits]
    return torch.tensor(parts) if parts else None
