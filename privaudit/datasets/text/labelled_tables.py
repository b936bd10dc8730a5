"""Tables whose columns say of which class a picture or a text is, such as CheXpert's.

Source of the policies for uncertain labels: Irvin et al., "CheXpert: a large chest
radiograph dataset with uncertainty labels and expert comparison", AAAI 2019, section 3.
Its pictures, those of MIMIC-CXR and the notes of MIMIC-III (Johnson et al., "MIMIC-III, a
freely accessible critical care database", Scientific Data 3, 2016) are only given to
people who agreed to their terms: nothing is downloaded here.
"""

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass
from torch import Tensor

from privaudit.core.errors import DatasetError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION, Dataset, Texts
from privaudit.datasets.files.checked_json import parse_checked, read_checked
from privaudit.datasets.images.picture_files import (
    SPLITS,
    number,
    part_of,
    pictures_of,
    require_classes,
)
from privaudit.datasets.sources import on_disk, only_file
from privaudit.datasets.text.question_texts import class_questions
from privaudit.datasets.text.rows import TextRow, read_rows

Content = Literal["image", "text"]

COLUMNS_FILE = "columns.json"
TRUTHS = {"": 0, "0": 0, "0.0": 0, "1": 1, "1.0": 1, "-1": -1, "-1.0": -1}
_NAMING = ("label", "target", "labels")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Columns:
    """What the columns of a table are; ``columns.json`` beside it says so.

    Exactly one of ``label``, ``target`` and ``labels`` says what the class is.

    Attributes:
        image: Holds a picture's file.
        text: Holds a text; a second one may be named in a list.
        label: Holds the class's name.
        target: Holds 1 where its finding is there, 0 or nothing where not, and -1 where
            that is uncertain: two classes.
        labels: Several of that kind: the class is the only one that holds 1, and
            records with none or several are left out.
        uncertain: What -1 means: "ignore" leaves the record out, "zeros" takes it for
            0 and "ones" for 1.
        split: Holds train, val or test.
        owner: Holds whose a record is, such as a patient: its domain.
        where: Only rows that hold these texts in these columns count.
        template: A prompt with {} for the class name; empty for the usual one.
    """

    image: str = "image"
    text: str | tuple[str, str] = "text"
    label: str | None = None
    target: str | None = None
    labels: tuple[str, ...] = ()
    uncertain: Literal["ignore", "zeros", "ones"] = "ignore"
    split: str | None = None
    owner: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    template: str = ""

    def holding(self, content: Content) -> tuple[str, ...]:
        """Return the columns that hold a record itself."""
        columns = self.image if content == "image" else self.text
        return (columns,) if isinstance(columns, str) else columns


COLUMNS = TypeAdapter(Columns)
ENTRIES = TypeAdapter(dict[str, Any])


@dataclass(frozen=True)
class Labelled:
    """The rows of a table that have a class.

    Attributes:
        contents: Each row's picture, or its one or two texts.
        parts: The part of each row, if the table has parts.
        owners: Whose each row is, if the table says it.
    """

    columns: Columns
    contents: tuple[tuple[str, ...], ...]
    classes: tuple[str, ...]
    parts: tuple[int, ...]
    owners: tuple[str, ...] = ()

    @property
    def split(self) -> Int[Tensor, " n"] | None:
        """The part of each row."""
        return torch.tensor(self.parts) if self.parts else None

    @property
    def domains(self) -> tuple[Int[Tensor, " n"] | None, tuple[str, ...]]:
        """The owner of each row by number, and their names."""
        if not self.owners:
            return None, ()
        names = sorted(set(self.owners))
        place = {name: number for number, name in enumerate(names)}
        return torch.tensor([place[name] for name in self.owners]), tuple(names)

    def numbered(self, path: Path) -> tuple[Int[Tensor, " n"], tuple[str, ...]]:
        """Return the class numbers, and their names as a prompt would write them."""
        labels, names = number(self.classes, _finding_names(self.columns))
        require_classes(labels, names, path)
        return labels, names


def read_labelled(path: Path, usual: Mapping[str, Any], content: Content) -> Labelled:
    """Read train.csv, valid.csv and test.csv, or the only table of a folder.

    Where there is no test.csv, valid.csv is the test part. ``usual`` is what
    ``columns.json`` says where it says nothing else.
    """
    folder = path if path.is_dir() else path.parent
    columns = _read_columns(folder, usual)
    files, held = _find_tables(path), columns.holding(content)

    def own(row: TextRow) -> tuple[str, ...]:
        return tuple(row.take_text(name) for name in held)

    records = [
        (
            own(row),
            label,
            part_of(row.take(columns.split), row.where) if columns.split else part,
            row.take_text(columns.owner) if columns.owner else "",
        )
        for part, file in files
        for row in read_rows(file)
        if all(row.take(name) == text for name, text in columns.where.items())
        and (label := _class_of(row, columns)) is not None
    ]
    if not records:
        raise DatasetError(
            f"No row of {', '.join(str(file) for _, file in files)} has a class. Look "
            f"at what {COLUMNS_FILE} says of columns, of where and of uncertain labels."
        )
    contents, classes, parts, owners = zip(*records, strict=True)
    has_parts = columns.split is not None or len(files) > 1
    return Labelled(
        columns,
        contents,
        classes,
        parts if has_parts else (),
        owners if columns.owner else (),
    )


def _read_columns(folder: Path, usual: Mapping[str, Any]) -> Columns:
    file = folder / COLUMNS_FILE
    said = read_checked(file, ENTRIES) if file.is_file() else {}
    if any(name in said for name in _NAMING):
        usual = {name: usual[name] for name in usual if name not in _NAMING}
    columns = parse_checked(ENTRIES.dump_json({**usual, **said}), COLUMNS, str(file))
    named = [name for name in _NAMING if getattr(columns, name)]
    if len(named) != 1 or len(set(columns.labels)) == 1:
        raise DatasetError(
            f"{file} says {' and '.join(named) or 'nothing'} of the class. Say one of "
            "label (a column of names), target (a column of 1, 0 and -1) and labels "
            "(two or more of that kind)."
        )
    return columns


def _find_tables(path: Path) -> list[tuple[int, Path]]:
    """Return tables with their parts; one alone is in one piece."""
    tables = [path] if path.is_file() else sorted(path.glob("*.csv"))
    known = dict[int, Path]()
    for file in tables:
        part = SPLITS.get(file.stem.lower())
        if part is not None and known.setdefault(part, file) is not file:
            raise DatasetError(
                f"{known[part].name} and {file.name} in {path} are the same part. "
                "Put their rows into one, or take one out."
            )
    if TRAIN not in known or len(known) == 1:
        missing = f"There is no table in {path}. Put a .csv there."
        return [(TRAIN, only_file(path, "*.csv", missing))]
    if TEST_SPLIT not in known:
        known = {TRAIN: known[TRAIN], TEST_SPLIT: known[VALIDATION]}
    return sorted(known.items())


def _class_of(row: TextRow, columns: Columns) -> str | None:
    """Return a row's class; None for one that has none."""
    if columns.label is not None:
        return row.take_text(columns.label)
    if columns.target is not None:
        truth = _truth(row, columns.target, columns)
        return None if truth is None else _finding_names(columns)[truth]
    truths = [_truth(row, name, columns) for name in columns.labels]
    if None in truths or truths.count(1) != 1:
        return None
    return columns.labels[truths.index(1)]


def _finding_names(columns: Columns) -> tuple[str, ...]:
    if columns.target is not None:
        return f"no {columns.target}", columns.target
    return columns.labels


def _truth(row: TextRow, name: str, columns: Columns) -> int | None:
    """Return 0 or 1 by the policy for uncertain labels; None for a row to ignore."""
    label = row.take(name)
    if label not in TRUTHS:
        raise DatasetError(
            f"{row.where} has {label!r} under {name}. There are 1, 0, -1 (uncertain) "
            "and nothing: write one of these."
        )
    policy = {"ignore": None, "zeros": 0, "ones": 1}
    return policy[columns.uncertain] if TRUTHS[label] < 0 else TRUTHS[label]


CHEXPERT = {
    "image": "Path",
    "target": "Pleural Effusion",
    "template": "a chest X-ray with {}.",
}


def read_image_table(path: Path, usual: Mapping[str, Any]) -> Dataset:
    """Read a .csv with a row for each picture, and the pictures beside it.

    Grey pictures are read as RGB of three equal channels. ``usual`` are the columns where
    ``columns.json`` names no others.
    """
    labelled = read_labelled(path, usual, "image")
    labels, names = labelled.numbered(path)
    folder = path if path.is_dir() else path.parent
    files = [file for (file,) in labelled.contents]
    return Dataset(
        pictures_of(folder, _below(folder, files)), labels, names,
        labelled.columns.template or "a photo of a {}.",
        labelled.split, *labelled.domains,
    )  # fmt: skip


def _below(folder: Path, files: list[str]) -> list[str]:
    """Take off a first folder that all names share and that is not there.

    CheXpert's names begin with its own folder's.
    """
    first, _, _ = files[0].partition("/")
    shared = all(file.startswith(f"{first}/") for file in files)
    inside = [file.removeprefix(f"{first}/") for file in files]
    if not first or not shared or (folder / first).exists():
        return files
    return inside if (folder / inside[0]).is_file() else files


_TABLE = (
    "one .csv, or train.csv with valid.csv or test.csv, and the pictures beside it; "
    f"in {COLUMNS_FILE}"
)
on_disk(
    "image-table",
    summary="Your images, with a table that says what is on them.",
    needs=_TABLE + ', what the columns are, such as {"image": "path", "label": '
    '"finding"}',
    source="Write such a table",
)(partial(read_image_table, usual={"label": "label"}))
on_disk(
    "chexpert",
    summary="CheXpert: X-rays of the chest; is there a pleural effusion?",
    needs=_TABLE + ', optionally, other columns than {"target": "Pleural Effusion", '
    '"uncertain": "ignore"}',
    source="Access is restricted, and nothing is downloaded: ask for "
    "CheXpert-v1.0-small at https://stanfordmlgroup.github.io/competitions/chexpert/",
    folders=("CheXpert-v1.0-small", "CheXpert-v1.0"),
)(partial(read_image_table, usual=CHEXPERT))


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
