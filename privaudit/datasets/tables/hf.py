"""Data sets of Hugging Face: pictures, texts, or both, in Parquet and Arrow tables.

They lie in a folder as ``save_to_disk`` writes it, in a repository of the hub, or in any
folder of Parquet files. Nothing is executed and nothing unpickled: a data set that comes
as a script is not read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Int
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from privaudit.core import parameters
from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.core.limits import check_limit, read_bytes
from privaudit.datasets.captions.image_captions import ONE_CLASS
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION, Dataset, Texts
from privaudit.datasets.files.checked_json import (
    parse_checked,
    parse_yaml,
    read_checked,
)
from privaudit.datasets.images.picture_files import (
    SPLITS,
    number,
    readable,
    require_classes,
)
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import NO_COLUMNS, TableColumns, on_disk
from privaudit.datasets.tables.blocks import Block, blocks_of, readable_table
from privaudit.datasets.tables.columns import (
    ChosenColumns,
    TablePictures,
    choose_columns,
    shown_columns,
)
from privaudit.datasets.text.question_texts import DESCRIBE, class_questions

TABLES = (".parquet", ".arrow")
SHOWN = 5  # files in an error
Names = Mapping[str, tuple[str, ...]]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _by_split(value: Any) -> Any:
    """Return a card's files as splits with paths; files alone are those of train.

    Source: https://huggingface.co/docs/hub/datasets-manual-configuration, and
    ``sanitize_patterns`` of the datasets library, which reads it.
    """
    if isinstance(value, dict):
        return [{"split": split, "path": path} for split, path in value.items()]
    listed = _listed(value)
    if isinstance(listed, list) and {*map(type, listed)} == {str}:
        return [{"split": "train", "path": listed}]
    return listed


@checked(frozen=True)
class _SplitFiles:
    split: str
    path: Annotated[list[str], BeforeValidator(_listed)]


@checked(frozen=True)
class _Config:
    config_name: str
    data_files: Annotated[list[_SplitFiles] | None, BeforeValidator(_by_split)] = None
    data_dir: str = "."
    default: bool = False


STATE = TypeAdapter(dict[str, Any])
CONFIGS = TypeAdapter(list[_Config])


def find_tables(path: Path) -> dict[str, list[Path]]:
    """Return the files of each split, in their order."""
    if path.is_file():
        return {"train": [path]}
    if (path / "dataset_dict.json").is_file():
        said = read_checked(
            path / "dataset_dict.json", TypeAdapter(dict[str, list[str]])
        )
        folders = {name: path / _inside(name, path) for name in said.get("splits", [])}
        return {name: _saved(folder) for name, folder in folders.items()}
    if (path / "state.json").is_file():
        return {"train": _saved(path)}
    return _by_readme(path) or _by_name(path)


def _saved(folder: Path) -> list[Path]:
    """Return the files that ``save_to_disk`` wrote, in the order that it noted."""
    state = read_checked(folder / "state.json", STATE)
    entries = state.get("_data_files")
    names = [
        str(entry.get("filename") if isinstance(entry, dict) else entry)
        for entry in (entries if isinstance(entries, list) else [])
    ]
    if not names:
        raise DatasetError(
            f"{folder / 'state.json'} names no data files. Save the data set again."
        )
    return [folder / _inside(name, folder) for name in names]


def _inside(name: str, folder: Path) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise DatasetError(f"{name!r} in {folder} leaves the folder. Fix the list.")
    return name


def _by_readme(path: Path) -> dict[str, list[Path]]:
    """Return the files that a repository's card lists; none if it lists none."""
    entries = card_of(path).get("configs")
    if not entries:
        return {}
    try:
        configs = CONFIGS.validate_python(entries)
    except ValidationError as error:
        said = parameters.readable(error, f"{path / 'README.md'}, configs")
        raise DatasetError(said) from None
    chosen = configs if len(configs) == 1 else [c for c in configs if c.default]
    if len(chosen) != 1:
        raise DatasetError(
            f"{path} holds the configurations {', '.join(c.config_name for c in configs)}"
            ". Put the files of one of them into a folder, and name that."
        )
    files, place = chosen[0].data_files, chosen[0].data_dir
    base = path / _inside(place, path) if PurePosixPath(place).parts else path
    if not files:
        return _by_name(base)
    found = dict[str, list[Path]]()
    for one in files:  # of which several may be of one split
        matching = [file for pattern in one.path for file in _matching(pattern, base)]
        if not matching:
            raise MissingFileError(
                f"{path / 'README.md'} names files of {one.split}, and there are none "
                f"that end in {' or '.join(TABLES)}. Get them, too."
            )
        found.setdefault(one.split, []).extend(matching)
    return found


def _matching(pattern: str, path: Path) -> list[Path]:
    """Return the tables that a card's pattern names."""
    parts = PurePosixPath(_inside(pattern, path)).parts
    if any("**" in part and part != "**" for part in parts):
        raise DatasetError(
            f"The card names the files {pattern!r} in {path}: ** stands for folders, and "
            "for nothing else. Write data/**/*.parquet, say."
        )
    return sorted(file for file in path.glob(pattern) if file.suffix in TABLES)


def _by_name(path: Path) -> dict[str, list[Path]]:
    """Return the files by the split in their names, such as data/train-00000.parquet."""
    files = sorted(file for end in TABLES for file in path.rglob(f"*{end}"))
    files = [
        f for f in files if not any(p[:1] == "." for p in f.relative_to(path).parts)
    ]
    if not files:
        raise MissingFileError(
            f"There is no .parquet and no .arrow file in {path}. Put one there, or "
            "write the data set with save_to_disk."
        )
    found: dict[str, list[Path]] = {}
    for file in files:
        words = re.split(r"[^a-z]+", file.relative_to(path).as_posix().lower())
        split = next((word for word in words if word in SPLITS), "")
        found.setdefault(split, []).append(file)
    if set(found) == {""}:
        return {"train": files}
    if "" in found:
        raise DatasetError(
            f"{path} holds files of the splits {', '.join(sorted(found.keys() - {''}))}, "
            f"and files that name none: {_some(found[''], path)}. Put a split such as "
            "train or test into their names, or take them out."
        )
    return found


def _some(files: Sequence[Path], path: Path) -> str:
    names = [str(file.relative_to(path)) for file in files]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def card_of(path: Path) -> dict[str, Any]:
    """Return what the head of a repository's README.md says; nothing without one."""
    file = (path if path.is_dir() else path.parent) / "README.md"
    if not file.is_file():
        return {}
    text = read_bytes(file, "toml").decode(errors="replace")
    head = re.match(r"\ufeff?---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
    said = parse_yaml(head.group(1), f"The head of {file}") if head else {}
    return said if isinstance(said, dict) else {}


def class_names(path: Path, metadata: Mapping[bytes, bytes] | None) -> Names:
    """Return the names of the classes of each column that has some.

    Args:
        path: The folder, whose card may name them.
        metadata: Of a table's schema, where the library notes them.
    """
    noted = (metadata or {}).get(b"huggingface")
    if noted is not None:
        said = parse_checked(noted, STATE, f"What {path} notes of its columns")
        features = _dict(_dict(said.get("info")).get("features"))
        return {
            column: tuple(map(str, about["names"]))
            for column, about in features.items()
            if isinstance(about, dict) and isinstance(about.get("names"), list)
        }
    about = card_of(path).get("dataset_info")
    infos = about if isinstance(about, list) else [about]
    listed = _dict(infos[0]).get("features") if len(infos) == 1 else None
    found = dict[str, tuple[str, ...]]()
    for feature in listed if isinstance(listed, list) else []:
        label = _dict(_dict(_dict(feature).get("dtype")).get("class_label"))
        names = label.get("names")
        if isinstance(names, dict):
            names = _numbered(names, path)
        if isinstance(names, list):
            found[str(_dict(feature).get("name"))] = tuple(map(str, names))
    return found


def _numbered(names: Mapping[Any, Any], path: Path) -> list[Any]:
    """Return the names of a card's classes by their numbers."""
    for key in names:
        if not re.fullmatch("[0-9]{1,9}", str(key)):
            raise DatasetError(
                f"The card of {path} names a class with the number {str(key)[:80]!r}. "
                "Number them from '0'."
            )
    return [names[key] for key in sorted(names, key=lambda key: int(str(key)))]


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


ITEM = 50  # bytes of an item of a list as an object; those of rows are in "records"
NO_CLASS = (None, -1)  # as the hub marks records whose label is kept back


@dataclass(frozen=True)
class _Rows:
    """The rows of all splits that have a class.

    Attributes:
        blocks: Of all splits, one behind the other.
        names: Of the classes of each column that has some.
        positions: Which rows of the blocks they are.
        values: What stands in all columns but the pictures'.
        split: The part of each, if there are several.
    """

    path: Path
    blocks: Sequence[Block]
    chosen: ChosenColumns
    names: Names
    positions: Int[np.ndarray, " records"]
    values: Mapping[str, list[Any]]
    split: Int[Tensor, " records"] | None


def from_hub(name: str) -> Path:
    """Return the folder of a data set of the hub, from the local cache or the network.

    Only tables and the card are fetched: no script.
    """
    from huggingface_hub import snapshot_download

    wanted = ["*.parquet", "*.arrow", "README.md", "*.json"]
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=wanted))
    except Exception as error:  # whatever a network, a proxy or the hub can raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise MissingFileError(
            f"There is no folder {name} here, and as a data set of the hub it cannot be "
            f"fetched ({reason}). Name a folder, or connect to the network."
        ) from error


@on_disk(
    "hf",
    summary="A data set of Hugging Face: Parquet or Arrow, as hf:FOLDER or hf:NAME.",
    needs="a folder as save_to_disk of the datasets library writes it, a repository "
    "of the hub, or .parquet files; --image-column, --label-column, --text-column "
    "and --owner-column say what their columns are",
    source="Write it with save_to_disk, or name one of the hub",
    fetch=from_hub,
    takes_columns=True,
)
def read_hf(path: Path, columns: TableColumns = NO_COLUMNS) -> Dataset:
    """Read a folder as ``save_to_disk`` writes it, a repository of the hub, or tables.

    With pictures and a text they have captions, for models that write; with pictures
    alone, classes; with texts alone, classes and a question about them. Records without
    a class are left out. Owners are domains: ``--partition domains`` splits by them.
    """
    rows = _read_rows(path, columns)
    labels, classes = _classes(rows)
    domains, owners = _named(rows, rows.chosen.owner, "an owner", "--owner-column")
    groups, _ = _named(rows, rows.chosen.group, "a group", "column as --groups")
    texts = _texts(rows)
    if rows.chosen.image is None:
        asked = class_questions(texts, labels, classes)
        return Dataset(
            Texts(texts), labels, classes, "This is {}.",
            rows.split, domains, owners, asked, groups,
        )  # fmt: skip
    pictures = TablePictures(rows.blocks, rows.chosen.image, rows.positions)
    asked = tuple(Dialogue(DESCRIBE, captions) for captions in texts)
    return Dataset(
        pictures, labels, classes, split=rows.split,
        domains=domains, domain_names=owners, dialogues=asked, groups=groups,
    )  # fmt: skip


def _read_rows(path: Path, columns: TableColumns) -> _Rows:
    splits = {
        name: [block for file in files for block in blocks_of(file)]
        for name, files in find_tables(path).items()
    }
    parts = _parts(splits, path)
    blocks = [block for name in parts for block in splits[name]]
    counts = [sum(block.rows for block in splits[name]) for name in parts]
    check_limit("records", sum(counts), str(path))
    schema = _schema(blocks, path)
    names = class_names(path, schema.metadata)
    chosen = choose_columns(columns, schema, tuple(names), path)
    values = _values(blocks, chosen, path)
    labels = values.get(chosen.label or "")
    with_class = (
        not labels or labels[row] not in NO_CLASS for row in range(sum(counts))
    )
    positions = np.flatnonzero(list(with_class))
    if not len(positions):
        raise DatasetError(
            f"No row of {path} has a class: all labels are missing or -1. Name another "
            "--label-column."
        )
    split = np.repeat(list(parts.values()), counts)[positions]
    return _Rows(
        path, blocks, chosen, names, positions,
        {name: [held[row] for row in positions] for name, held in values.items()},
        torch.from_numpy(split) if len(parts) > 1 else None,
    )  # fmt: skip


def _parts(splits: dict[str, list[Block]], path: Path) -> dict[str, int]:
    """Return which split is which part; without a test split, validation is it."""
    if len(splits) == 1:
        return dict.fromkeys(splits, TRAIN)
    parts = {name: SPLITS[name.lower()] for name in splits if name.lower() in SPLITS}
    if TRAIN not in parts.values():
        raise DatasetError(
            f"{path} holds the splits {', '.join(map(repr, splits))}, and no train. "
            "Name the folder or the file of one of them."
        )
    if TEST_SPLIT not in parts.values():
        parts = {n: TEST_SPLIT if p == VALIDATION else p for n, p in parts.items()}
    return dict(sorted(parts.items(), key=lambda item: item[1]))


def _schema(blocks: Sequence[Block], path: Path) -> Any:
    """Return the schema of all files."""
    if not any(block.rows for block in blocks):
        raise DatasetError(f"The tables in {path} hold no row. Get them again.")
    schema = blocks[0].schema
    if twice := sorted({n for n in schema.names if schema.names.count(n) > 1}):
        raise DatasetError(
            f"{blocks[0].file} has several columns {', '.join(twice)}. Rename them."
        )
    for block in blocks:
        if not schema.equals(block.schema):
            raise DatasetError(
                f"{block.file} has other columns than {blocks[0].file}: "
                f"{shown_columns(block.schema)}, and not {shown_columns(schema)}. Name "
                "the folder of one table."
            )
    return schema


def _values(
    blocks: Sequence[Block], chosen: ChosenColumns, path: Path
) -> dict[str, list[Any]]:
    """Return what stands in all but the pictures, within a bound."""
    names, size = chosen.read_first, 0
    held: dict[str, list[Any]] = {name: [] for name in names}
    for block in blocks if names else ():
        table = block.read(names)
        size += table.nbytes + ITEM * sum(map(_items, table.columns))
        check_limit("lines", size, f"The columns {', '.join(names)} of {path}")
        with readable_table(block.file):
            for name in names:
                held[name] += table.column(name).to_pylist()
    return held


def _items(column: Any) -> int:
    """Return how many items the lists of a column have; 0 if it has none."""
    return sum(len(getattr(chunk, "values", ())) for chunk in column.chunks)


def _classes(rows: _Rows) -> tuple[Int[Tensor, " n"], tuple[str, ...]]:
    """Return the class numbers, and their names as a prompt would write them."""
    label, path = rows.chosen.label, rows.path
    if label is None:
        return torch.zeros(len(rows.positions), dtype=torch.long), (ONE_CLASS,)
    values = rows.values[label]
    if not {type(value) for value in values} <= {int, bool, str}:
        raise DatasetError(
            f"The column {label} of {path} holds {str(values[0])[:80]}. A class is a "
            "text or a whole number: name another --label-column."
        )
    known = rows.names.get(label)
    if known is None:
        kinds = sorted(set(values), key=lambda one: (isinstance(one, str), one))
        known, places = tuple(map(str, kinds)), {k: n for n, k in enumerate(kinds)}
        values = [places[value] for value in values]
    elif wrong := [v for v in values if isinstance(v, str) or not 0 <= v < len(known)]:
        raise DatasetError(
            f"The column {label} of {path} holds {wrong[0]!r}, and its classes are 0 to "
            f"{len(known) - 1}. Get the tables again."
        )
    numbers = torch.tensor(values, dtype=torch.long)
    if not rows.chosen.writes:
        require_classes(numbers, known, path)
    return numbers, tuple(map(readable, known))


def _named(
    rows: _Rows, column: str | None, what: str, option: str
) -> tuple[Int[Tensor, " n"] | None, tuple[str, ...]]:
    """Return a column of names as numbers, and the names."""
    if column is None:
        return None, ()
    names = ["" if one is None else str(one).strip() for one in rows.values[column]]
    if "" in names:
        raise DatasetError(
            f"A record in {rows.path} has nothing under {column}. Give each {what}, or "
            f"name another {option}."
        )
    numbers, known = number(names)  # a name of underscores alone stays one
    raw = sorted(set(names))
    return numbers, tuple(word or name for word, name in zip(known, raw, strict=True))


def _texts(rows: _Rows) -> tuple[tuple[str, ...], ...]:
    """Return each record's texts: one, a pair, or all captions of a list."""
    columns = [rows.values[name] for name in rows.chosen.texts]
    return tuple(
        tuple(text for cell in cells for text in _checked(cell, rows))
        for cells in zip(*columns, strict=True)
    )


def _checked(cell: Any, rows: _Rows) -> list[str]:
    texts = cell if isinstance(cell, list) and rows.chosen.writes else [cell]
    if not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise DatasetError(
            f"A record in {rows.path} has {str(cell)[:80]!r} under "
            f"{' or '.join(rows.chosen.texts)}. Give each a text that is not blank, or "
            "name another --text-column."
        )
    return [text.strip() for text in texts]
