"""Tables that users bring, row by row: tab-separated, comma-separated or JSON lines."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.core.errors import DatasetError
from privaudit.core.limits import bounded_lines, check_limit, reading_errors

ENDINGS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class TextRow:
    """One record of a table.

    Attributes:
        where: What errors call it, such as "Line 3 of dev.tsv".
        fields: Texts by the names of their columns.
    """

    where: str
    fields: Mapping[str, str]

    def take(self, *names: str) -> str:
        """Return what stands in the first of these columns that is there, trimmed."""
        for name in names:
            if name in self.fields:
                return self.fields[name].strip()
        raise DatasetError(
            f"{self.where} has the columns {', '.join(self.fields)}, and no "
            f"{' or '.join(names)}. Name one so, or get the file again."
        )

    def take_text(self, *names: str) -> str:
        """Return the same, which may not be blank."""
        text = self.take(*names)
        if not text:
            raise DatasetError(
                f"{self.where} has nothing under {' or '.join(names)}. Write it, or "
                "take the record out."
            )
        return text


def read_rows(file: Path) -> Iterator[TextRow]:
    """Yield the rows of a table by its ending, in either case; none is held as a whole.

    In .tsv nothing is quoted, as in the files of GLUE; in .csv texts in double quotes
    may hold commas and line ends. Both begin with the names of their columns. In .jsonl
    each line is an object of texts and numbers. Blank lines do not count, nor do spaces
    around the name of a column.
    """
    ending = file.suffix.lower()
    if ending not in ENDINGS:
        raise DatasetError(
            f"{file} is no table that is read: those end in {', '.join(ENDINGS)}. Write "
            "it as one of these (a parquet file with `to_json` of the datasets library)."
        )
    rows = _json_rows if ending == ".jsonl" else _separated_rows
    for count, row in enumerate(rows(file), start=1):
        check_limit("records", count, str(file))
        yield row


def _separated_rows(file: Path) -> Iterator[TextRow]:
    is_tsv = file.suffix.lower() == ".tsv"
    rows = _tab_separated(file) if is_tsv else _comma_separated(file)
    names = [name.strip() for name in next(rows, (0, []))[1]]
    if len(set(names)) < len(names) or not any(names):
        raise DatasetError(
            f"{file} begins with {names}. Begin with the name of each column, each "
            "another one."
        )
    for line, cells in rows:
        if len(cells) != len(names):
            raise DatasetError(
                f"Line {line} of {file} has {len(cells)} fields, and its first line "
                f"names {len(names)} columns. Fix the line, or take it out."
            )
        yield TextRow(f"Line {line} of {file}", dict(zip(names, cells, strict=True)))


def _tab_separated(file: Path) -> Iterator[tuple[int, list[str]]]:
    for line, text in _lines(file):
        if text.strip():
            yield line, text.rstrip("\r\n").split("\t")


def _comma_separated(file: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((text for _, text in _lines(file)), strict=True)
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise DatasetError(
                f"The record that begins in line {first} of {file} is broken ({error})."
                " Fix its double quotes, or take it out."
            ) from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield first, cells


def _json_rows(file: Path) -> Iterator[TextRow]:
    for line, text in _lines(file):
        if text.strip():
            where = f"Line {line} of {file}"
            yield TextRow(where, _flat(text, where))


def _flat(text: str, where: str) -> Mapping[str, str]:
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{where} is not JSON ({error}). Fix the line, or get the file again."
        ) from None
    if not isinstance(parsed, dict):
        raise DatasetError(
            f"{where} holds a {type(parsed).__name__} in place of a JSON object. Write "
            'one, such as {"text": "...", "label": 0}.'
        )
    # Further entries, such as lists of votes, are nobody's columns.
    plain = {k: v for k, v in parsed.items() if isinstance(v, str | int | float | None)}
    return {name: "" if v is None else str(v) for name, v in plain.items()}


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; only line feeds end one, as texts hold others."""
    with reading_errors(file):
        for line, content in enumerate(bounded_lines(file), start=1):
            yield line, _decode(content, line, file)


def _decode(content: bytes, line: int, file: Path) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"Line {line} of {file} is not UTF-8 ({error.reason} at byte "
            f"{error.start}). Save the file as UTF-8."
        ) from None
    return text.removeprefix("\ufeff") if line == 1 else text
