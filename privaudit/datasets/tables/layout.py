"""Where the tables of a data set lie, by split, and what is noted of their columns.

In a folder as ``save_to_disk`` writes it, in a repository of the hub, or in any folder of
Parquet files.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from privaudit.core import parameters
from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.datasets.files.checked_json import parse_checked, read_checked
from privaudit.datasets.files.plain_yaml import parse_yaml
from privaudit.datasets.images.class_folders import SPLITS

TABLES = (".parquet", ".arrow")
SHOWN = 5  # files in an error
Names = Mapping[str, tuple[str, ...]]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


@checked(frozen=True)
class _SplitFiles:
    split: str
    path: Annotated[list[str], BeforeValidator(_listed)]


@checked(frozen=True)
class _Config:
    config_name: str
    data_files: list[_SplitFiles]
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
    found = {
        one.split: [file for pattern in one.path for file in _matching(pattern, path)]
        for one in chosen[0].data_files
    }
    for split, files in found.items():
        if not files:
            raise MissingFileError(
                f"{path / 'README.md'} names files of {split}, and there are none that "
                f"end in {' or '.join(TABLES)}. Get them, too."
            )
    return found


def _matching(pattern: str, path: Path) -> list[Path]:
    """Return the tables that a card's pattern names."""
    parts = PurePosixPath(_inside(pattern, path)).parts
    if any("**" in part and part != "**" for part in parts):
        raise DatasetError(
            f"{path / 'README.md'} names the files {pattern!r}: ** stands for folders, "
            "and for nothing else. Write data/**/*.parquet, say."
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
