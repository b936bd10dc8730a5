"""SQuAD: questions about paragraphs of Wikipedia, answered by words of the paragraph.

Source: Rajpurkar, Zhang, Lopyrev, Liang, EMNLP 2016 (version 1.1); Rajpurkar, Jia,
Liang, ACL 2018 (version 2.0, with questions that the paragraph does not answer).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired
from urllib.parse import unquote

import torch
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, Dataset, Texts
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.images.picture_files import number, require_classes
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import OnDisk, only_file
from privaudit.statistics.captions.answers import UNANSWERABLE

ASKING = re.compile(r"\b(what|who|whom|whose|when|where|which|why|how)\b", re.I)
SAME = {"whom": "who", "whose": "who"}
OTHER = "other"
ELSE = f"If the context does not answer it, write: {UNANSWERABLE}."
PAGE = "https://rajpurkar.github.io/SQuAD-explorer/"


class _Answer(TypedDict):
    text: str


class _Question(TypedDict):  # without answers where the paragraph has none
    id: str
    question: str
    answers: list[_Answer]
    is_impossible: NotRequired[bool]


class _Paragraph(TypedDict):
    context: str
    qas: list[_Question]


class _Article(TypedDict):
    title: str
    paragraphs: list[_Paragraph]


class _Squad(TypedDict):
    data: list[_Article]


SQUAD = TypeAdapter(_Squad)


@dataclass(frozen=True)
class SquadRecord:
    """One question.

    Attributes:
        answers: The right ones, each once; "unanswerable" where there is none.
    """

    article: str
    context: str
    question: str
    answers: tuple[str, ...]

    def dialogue(self, *, may_abstain: bool) -> Dialogue:
        """Return the question with its context written out."""
        ending = f"\n{ELSE}" if may_abstain else ""
        text = f"Context: {self.context}\nQuestion: {self.question}{ending}"
        return Dialogue(text, self.answers, short=True)


def read_squad(path: Path) -> Dataset:
    """Read train-*.json and dev-*.json; dev is the test part, as test is secret.

    No article is in both parts, so the label, by which records are split among clients,
    is the first word that asks: what, who, when, where, which, why, how, or other.
    """
    train = _find(path)
    dev = train.with_name(train.name.replace("train", "dev", 1))
    if dev == train or not dev.is_file():
        raise MissingFileError(
            f"{train} has no dev-*.json of its version beside it, which is the test "
            f"part. Download it from {PAGE}, or use squad-articles."
        )
    parts = [_read(file) for file in (train, dev)]
    split = torch.tensor([TRAIN, TEST_SPLIT])
    records = [record for part in parts for record in part]
    return _dataset(
        records, [_asking(record.question) for record in records], path,
        split.repeat_interleave(torch.tensor(list(map(len, parts)))),
    )  # fmt: skip


def read_squad_articles(path: Path) -> Dataset:
    """Read train-*.json, or one named file; the label is the article's title.

    It comes in one piece, so test records are about the same articles, and often about
    the same paragraphs, that clients train on.
    """
    records = _read(_find(path))
    titles = [unquote(record.article) for record in records]
    return _dataset(records, titles, path, None)


def _find(path: Path) -> Path:
    return only_file(
        path,
        "train-*.json",
        f"There is no train-v1.1.json and no train-v2.0.json in {path}. Download one "
        f"from {PAGE}.",
    )


def _read(file: Path) -> list[SquadRecord]:
    content = read_checked(file, SQUAD)
    records = [
        SquadRecord(article["title"], paragraph["context"].strip(), question, answers)
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question, answers in _questions(paragraph, file)
    ]
    if not records:
        raise DatasetError(f"{file} asks nothing. Get it again from {PAGE}.")
    return records


def _questions(
    paragraph: _Paragraph, file: Path
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield questions with their answers; blank questions ask nothing, and go."""
    for entry in paragraph["qas"]:
        impossible = entry.get("is_impossible", False)
        texts = [answer["text"].strip() for answer in entry["answers"]]
        if impossible != (not texts) or not all(texts):
            raise DatasetError(
                f"Question {entry['id']} of {file} has the answers {texts}, and "
                f"{'none' if impossible else 'at least one'} is expected, none blank. "
                "Get the file again, or take the question out."
            )
        if not paragraph["context"].strip():
            raise DatasetError(
                f"Question {entry['id']} of {file} is about a blank paragraph. Get the "
                "file again, or take it out."
            )
        if question := entry["question"].strip():
            yield question, tuple(dict.fromkeys(texts)) or (UNANSWERABLE,)


def _asking(question: str) -> str:
    match = ASKING.search(question)
    word = match[1].lower() if match else OTHER
    return SAME.get(word, word)


def _dataset(
    records: list[SquadRecord],
    classes: list[str],
    path: Path,
    split: torch.Tensor | None,
) -> Dataset:
    labels, names = number(classes)
    require_classes(labels, names, path)
    abstain = any(record.answers == (UNANSWERABLE,) for record in records)
    return Dataset(
        Texts(tuple((record.question, record.context) for record in records)),
        labels,
        names,
        split=split,
        dialogues=tuple(record.dialogue(may_abstain=abstain) for record in records),
    )


SQUAD_FILES = OnDisk(
    summary="SQuAD: questions about paragraphs, by the word that asks, for models that "
    "write.",
    needs="train-v1.1.json and dev-v1.1.json as SQuAD has them, or those of v2.0",
    source=f"Download them from {PAGE}",
    read=read_squad,
    folders=("SQuAD",),
)
SQUAD_ARTICLES = OnDisk(
    summary="SQuAD: questions about paragraphs, by article, for models that write.",
    needs="train-v1.1.json as SQuAD has them, or those of v2.0",
    source=f"Download them from {PAGE}",
    read=read_squad_articles,
    folders=("SQuAD", "squad"),
)
