"""A value for each record, such as whose it is: from a file, or from Python."""

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from privaudit.core.arrays import DAMAGE, map_npy
from privaudit.core.bounded_files import reading_errors
from privaudit.core.errors import ConfigError, DatasetError, LimitError, shown
from privaudit.core.limits import check_limit
from privaudit.datasets.tables.blocks import blocks_of
from privaudit.datasets.tables.columns import shown_columns
from privaudit.datasets.text.rows import ENDINGS, read_rows

LONGEST = 200  # letters of a value
_TABLES = (".parquet", ".arrow")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"-?[0-9]*\.[0-9]*")
_MISSING = frozenset(("", "nan", "none", "null", "n/a", "<na>", "nat"))

Values = Iterable[Any]
"""Whole numbers or texts, one for each record: a list, an array, a tensor, a series."""


@dataclass(frozen=True)
class RecordColumn:
    """A value for each record, by number.

    Attributes:
        number: Of each record's value among the distinct ones.
        distinct: Whole numbers, or texts, in their order.
    """

    number: Int[np.ndarray, " records"]
    distinct: tuple[int, ...] | tuple[str, ...]

    def __len__(self) -> int:
        return len(self.number)

    @property
    def first(self) -> Int[np.ndarray, " records"]:
        """For each record, the position of the first one with its value."""
        return np.unique(self.number, return_index=True)[1][self.number]


def number_values(what: str, values: Values) -> RecordColumn:
    """Number the distinct values of a column; texts that are whole numbers count as such."""
    found, number = _distinct(what, values)
    plain: list[Any] = [_plain(what, one) for one in found]
    if any(isinstance(one, str) for one in plain):
        plain = [str(one) for one in plain]
    distinct = tuple(sorted(set(plain)))
    place = {one: place for place, one in enumerate(distinct)}
    return RecordColumn(np.array([place[p] for p in plain], int)[number], distinct)


def _distinct(
    what: str, values: Values
) -> tuple[Sequence[Any], Int[np.ndarray, " records"]]:
    """Return the distinct values, in any order, and which of them each record has."""
    array = np.asarray(values) if hasattr(values, "__array__") else None
    if array is not None and array.ndim != 1:
        raise ConfigError(
            f"The {what} are an array of shape {array.shape}. Give one value for each "
            "record."
        )
    if array is not None and array.dtype.kind in "biufU":
        found, number = np.unique(array, return_inverse=True)
        return found.tolist(), number
    places: dict[Hashable, int] = {}
    try:
        listed = values if array is None else array.tolist()
        order = [places.setdefault(one, len(places)) for one in listed]
    except TypeError:  # no list, or one of lists
        raise ConfigError(
            f"The {what} are {shown(values)}. Give a list of one whole number or text "
            "for each record."
        ) from None
    return list(places), np.array(order, int)


def _plain(what: str, value: object) -> int | str:
    """Return a value as a whole number or a text."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, int):  # also True and False
        return int(number)
    text = number.strip() if isinstance(number, str) else None
    if text is not None and _WHOLE.fullmatch(text):
        return int(text)
    missing = number is None or (isinstance(number, float) and math.isnan(number))
    if missing or (text is not None and text.lower() in _MISSING):
        raise ConfigError(
            f"The {what} hold {shown(value)} where a value is missing. Fill it in, or "
            "take the record out of data and columns."
        )
    if text is None or _DECIMAL.fullmatch(text) or len(text) > LONGEST:
        raise ConfigError(
            f"The {what} hold {shown(value)}. Use whole numbers, or texts of at most "
            f"{LONGEST} letters."
        )
    return text


def read_column(option: str, source: str) -> Values:
    """Read FILE or FILE:COLUMN, a value for each record in the file's order.

    Args:
        option: Its name, for errors.
        source: A .npy file of one dimension, or a table (.csv, .tsv, .jsonl, .parquet,
            .arrow), of which the column must be named if there are several.

    Raises:
        MissingFileError: There is no such file.
        DatasetError: It is no such file or damaged, or has no such column.
        LimitError: It is larger than a bound.
    """
    whole = ":" not in source or Path(source).is_file()
    file, _, named = (source, "", "") if whole else source.rpartition(":")
    path, column = Path(file), named or None
    if path.suffix == ".npy":
        return _npy(option, path, column)
    if path.suffix in _TABLES:
        return _table(option, path, column)
    if path.suffix in ENDINGS:
        return _rows(option, path, column)
    raise DatasetError(
        f"{option} {shown(source)} is no file that is read: those end in "
        f"{', '.join(('.npy', *ENDINGS, *_TABLES))}, with :COLUMN behind it for a column "
        "of a table. Write it as one of these."
    )


def _npy(option: str, path: Path, column: str | None) -> np.ndarray:
    if column is not None:
        raise DatasetError(
            f"{option} names the column {shown(column)} of {path}, and an array has no "
            "columns. Leave it out."
        )
    try:
        with reading_errors(path):
            mapped = map_npy(path)
        check_limit("records", mapped.size, str(path))
        check_limit("arrays", mapped.nbytes, str(path))
        return np.array(mapped)
    except LimitError:
        raise
    except DAMAGE as error:
        raise DatasetError(
            f"{path} cannot be read ({error}): it is damaged, or no array of numbers or "
            "texts. Write it with numpy.save."
        ) from None


def _table(option: str, path: Path, column: str | None) -> list[Any]:
    blocks = blocks_of(path)
    if not blocks:
        return []
    schema = blocks[0].schema
    name = _one_of(option, path, column, schema.names)
    kind = str(schema.field(name).type)
    if not kind.startswith(("int", "uint", "string", "large_string", "bool")):
        raise DatasetError(
            f"{option}: {path} has the columns {shown_columns(schema)}, and {name} is "
            "neither of whole numbers nor of texts. Name another, or write it as such."
        )
    return [one for b in blocks for one in b.read([name]).column(name).to_pylist()]


def _rows(option: str, path: Path, column: str | None) -> list[str]:
    values: list[str] = []
    name = column
    for row in read_rows(path):
        if name is None or not values:
            name = _one_of(option, path, column, list(row.fields))
        value = row.take(name)
        if len(value) > LONGEST:
            raise DatasetError(
                f"{row.where} holds {shown(value)} under {name}. Use whole numbers, or "
                f"texts of at most {LONGEST} letters."
            )
        values.append(value)
    return values


def _one_of(option: str, path: Path, column: str | None, names: Sequence[str]) -> str:
    """Return the column that is meant, which must be there."""
    if column in names:
        return str(column)
    if column is None and len(names) == 1:
        return names[0]
    missing = "no column is named" if column is None else f"none is {shown(column)}"
    raise DatasetError(
        f"{option}: {path} has the columns {', '.join(names)}, and {missing}. Write "
        f"{path}:{names[0] if names else 'COLUMN'}."
    )
