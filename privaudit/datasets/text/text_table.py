"""Texts in a table with their classes, such as the notes of MIMIC-III.

Source: Johnson et al., "MIMIC-III, a freely accessible critical care database",
Scientific Data 3, 2016. It is only given to people who were trained and signed its
terms: nothing is downloaded here.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from privaudit.datasets.dataset import Dataset, Texts
from privaudit.datasets.sources import on_disk
from privaudit.datasets.text.labelled_rows import COLUMNS_FILE, read_labelled
from privaudit.datasets.text.text_questions import class_questions


def read_text_table(path: Path, usual: Mapping[str, Any]) -> Dataset:
    """Read a .csv with a row for each text, or for each pair of texts.

    Each record also has a dialogue: the class is asked for, and its name is the answer.
    ``usual`` are the columns where ``columns.json`` names no others.
    """
    labelled = read_labelled(path, usual, "text")
    labels, names = labelled.numbered(path)
    columns, texts = labelled.columns, labelled.contents
    return Dataset(
        Texts(texts), labels, names, columns.template or "This is {}.", labelled.split,
        *labelled.domains,
        dialogues=class_questions(texts, labels, names),
    )  # fmt: skip


on_disk(
    "text-table",
    summary="Your texts, in a table with their classes.",
    needs="one .csv, or train.csv with valid.csv or test.csv, with the columns "
    f"text and label, or those that {COLUMNS_FILE} names",
    source="Write such a table",
)(partial(read_text_table, usual={"label": "label"}))
on_disk(
    "mimic-notes",
    summary="MIMIC-III: clinical notes, by their category.",
    needs="NOTEEVENTS.csv, extracted, with the columns TEXT and CATEGORY, or a "
    f"table with others that {COLUMNS_FILE} names",
    source="Access is restricted, and nothing is downloaded: request it at "
    "https://physionet.org/content/mimiciii/",
    folders=("MIMIC-III", "mimiciii"),
)(partial(read_text_table, usual={"text": "TEXT", "label": "CATEGORY"}))
