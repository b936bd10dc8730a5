"""Texts in a table with their classes, such as the notes of MIMIC-III.

Source: Johnson et al., "MIMIC-III, a freely accessible critical care database",
Scientific Data 3, 2016. It is only given to people who were trained and signed its
terms: nothing is downloaded here.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from privaudit.datasets.dataset import DATASETS, Dataset, Texts
from privaudit.datasets.sources import OnDisk
from privaudit.datasets.text.labelled_rows import COLUMNS_FILE, read_labelled
from privaudit.datasets.text.text_questions import class_questions

TEMPLATE = "This is {}."


def read_text_table(path: Path, usual: Mapping[str, Any]) -> Dataset:
    """Read a .csv with a row for each text, or for each pair of texts.

    Each record also has a dialogue: the class is asked for, and its name is the answer.

    Args:
        path: The folder, or the table.
        usual: Columns, where ``columns.json`` names no others.

    Raises:
        MissingFileError: There is no table.
        ConfigError: As :func:`~privaudit.datasets.text.labelled_rows.read_labelled`, or a
            text is blank.
    """
    labelled = read_labelled(path, usual, "text")
    labels, names = labelled.numbered(path)
    columns, texts = labelled.columns, labelled.contents
    parts = ("Text",) if len(texts[0]) == 1 else ("Text 1", "Text 2")
    answers = [names[label] for label in labels.tolist()]
    domains, owners = labelled.domains
    return Dataset(
        Texts(texts), labels, names, columns.template or TEMPLATE, labelled.split,
        domains, owners,
        dialogues=class_questions(texts, parts, "Which class is it?", answers, names),
    )  # fmt: skip


DATASETS.register("text-table")(
    OnDisk(
        summary="Your texts, in a table with their classes.",
        needs="one .csv, or train.csv with valid.csv or test.csv, with the columns "
        f"text and label, or those that {COLUMNS_FILE} names",
        source="Write such a table",
        read=partial(read_text_table, usual={"label": "label"}),
    )
)
DATASETS.register("mimic-notes")(
    OnDisk(
        summary="MIMIC-III: clinical notes, by their category.",
        needs="NOTEEVENTS.csv, extracted, with the columns TEXT and CATEGORY, or a "
        f"table with others that {COLUMNS_FILE} names",
        source="Access is restricted, and nothing is downloaded: request it at "
        "https://physionet.org/content/mimiciii/",
        read=partial(read_text_table, usual={"text": "TEXT", "label": "CATEGORY"}),
        folders=("MIMIC-III", "mimiciii"),
    )
)
