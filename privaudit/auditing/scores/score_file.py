"""Scores in a file: .csv, .tsv, .jsonl or .npz, bounded before it is read.

============  ==========================================================
score         higher means more likely a member
member        1 or 0, true or false: whether the record was trained on
client        optional: whose record it is; scores are ranked within a client
class         optional: the class of the record
record        optional: its name; two files with the same names can be compared
group         optional: records that share a coin, such as those of one patient
baseline      optional: a score of the same record without the trained model
feature_NAME  optional: another number that is known without the trained model
============  ==========================================================

In .npz a ``feature_NAME`` may have a row of numbers for each record.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from privaudit.auditing.scores.score_table import LONGEST, ScoreTable
from privaudit.core.arrays import DAMAGE, read_npz
from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import ConfigError, shown
from privaudit.core.limits import check_limit
from privaudit.datasets.text.rows import ENDINGS, read_rows

NEEDED, OPTIONAL = ("score", "member"), ("client", "class", "record", "group")
BASELINE, FEATURE = "baseline", "feature_"
_TRUTHS: Mapping[str, bool] = {
    "1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False,
}  # fmt: skip


def read_scores(path: str | Path) -> ScoreTable:
    """Return the scores of a file.

    Raises:
        MissingFileError: There is no such file, or it is not readable.
        LimitError: It is larger than a bound.
        ConfigError: It is no such table; the text names the line and what to do.
    """
    place = Path(path)
    if place.suffix == ".npz":
        columns = _arrays(place)
    elif place.suffix in ENDINGS:
        columns = _rows(place)
    else:
        raise ConfigError(
            f"{place} is no file of scores that is read: those end in "
            f"{', '.join((*ENDINGS, '.npz'))}. Write it as one of these."
        )
    try:
        return ScoreTable.of(
            columns["score"],
            columns["member"],
            *(columns.get(name) for name in OPTIONAL),
            known=_known(columns),
        )
    except ConfigError as error:
        raise ConfigError(f"{place} cannot be audited. {error}") from None


def _is_known(name: str) -> bool:
    return name == BASELINE or name.startswith(FEATURE)


def _known(
    columns: Mapping[str, Shaped[np.ndarray, "..."]],
) -> Shaped[np.ndarray, "..."] | None:
    """Return what is known without the trained model, a row for each record."""
    found = [columns[name] for name in sorted(filter(_is_known, columns))]
    count = columns["score"].shape[:1]
    if any(one.shape[:1] != count or one.ndim > 2 for one in found):
        shapes = ", ".join(str(one.shape) for one in found)
        raise ConfigError(
            f"Its baseline and features are of shape {shapes}. Give one number, or one "
            "row of them, for each score."
        )
    return np.column_stack(found) if found else None


def _check_columns(found: Iterable[str], where: str | Path) -> None:
    missing = [name for name in NEEDED if name not in found]
    read = (*NEEDED, *OPTIONAL)
    unknown = [n for n in found if n not in read and not _is_known(n)]
    if missing or unknown:
        odd = (
            f"no {missing[0]}" if missing else f"{shown(unknown[0])}, which is not read"
        )
        raise ConfigError(
            f"{where} has the columns {shown(', '.join(found))}: {odd}. Read are "
            f"{', '.join(NEEDED)}, and if you like {', '.join(OPTIONAL)}, {BASELINE} and "
            f"{FEATURE}NAME. Rename the column, add it or take it out."
        )


def _rows(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the columns of a table of texts."""
    columns: dict[str, list[Any]] = {}
    for row in read_rows(path):
        if not columns:
            _check_columns(row.fields, row.where)
            columns = {name: [] for name in row.fields}
        if row.fields.keys() != columns.keys():  # in JSON each row names its own
            raise ConfigError(
                f"{row.where} has other columns than the first row. Give each row "
                f"{', '.join(columns)}."
            )
        for name, values in columns.items():
            values.append(_reader(name)(row.take(name), row.where))
    if not columns:
        raise ConfigError(
            f"{path} holds no scores. Write a first line with the names of the columns, "
            f"such as {','.join(NEEDED)}, and a line for each record."
        )
    for name in set(columns) & set(OPTIONAL):  # numpy makes all as long as the longest
        size = 4 * len(columns[name]) * max(map(len, columns[name]))
        check_limit("arrays", size, f"The column {name} of {path}")
    return {name: np.array(values) for name, values in columns.items()}


def _read_number(what: str, text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"{where} has the {what} {shown(text)}, which is no finite number. Write one, "
            "or take the record out."
        )
    return number


def _read_member(text: str, where: str) -> bool:
    truth = _TRUTHS.get(text.lower())
    if truth is None:
        raise ConfigError(
            f"{where} has {shown(text)} under member. Write 1 if the record was trained "
            "on, else 0."
        )
    return truth


def _read_name(text: str, where: str) -> str:
    if not text or len(text) > LONGEST:
        raise ConfigError(
            f"{where} has the name {shown(text)}. A name has 1 to {LONGEST} characters."
        )
    return text


def _reader(name: str) -> Callable[[str, str], Any]:
    if name == "member":
        return _read_member
    return _read_name if name in OPTIONAL else partial(_read_number, name)


def _arrays(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the columns of an npz file, of the types that :func:`_rows` gives."""
    content = read_bytes(path, "arrays")
    try:
        columns = dict(read_npz(content, str(path)))
        _check_columns(columns, path)
        kinds = {name: values.dtype.kind for name, values in columns.items()}
        names = {n: columns[n].astype(str) for n in OPTIONAL if n in columns}
    except ConfigError:  # with the bounds
        raise
    except DAMAGE as error:
        raise ConfigError(
            f"{path} cannot be read ({error}). Write it with numpy.savez, of plain "
            "arrays without objects."
        ) from None
    member = columns["member"]
    truths = kinds["member"] == "b" or np.isin(member, (0, 1)).all()
    if kinds["score"] not in "fiu" or kinds["member"] not in "biuf" or not truths:
        raise ConfigError(
            f"{path} has scores of type {columns['score'].dtype}, and members of type "
            f"{member.dtype}. Give numbers, and 1 or 0 for each record."
        )
    optional = {name: values for name, values in columns.items() if _is_known(name)}
    return {
        "score": columns["score"],
        "member": member.astype(bool),
        **names,
        **optional,
    }
