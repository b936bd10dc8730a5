"""Columns of a table, by what a user says or types and names tell, and pictures in one."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Int

from privaudit.core.errors import DatasetError
from privaudit.core.limits import check_limit
from privaudit.datasets.images.picture_files import EncodedPictures
from privaudit.datasets.sources import TableColumns
from privaudit.datasets.tables.blocks import Block, import_pyarrow

BLOCKS_HELD = 2  # the one in use, and the one that is read ahead


class TablePictures(EncodedPictures):
    """Pictures that lie in a column, as their files or as {bytes, path}.

    A few blocks are in memory at a time, and of mapped files none.
    """

    def __init__(
        self, blocks: Sequence[Block], column: str, rows: Int[np.ndarray, " records"]
    ) -> None:
        """Take some rows of all blocks, in that order."""
        self._blocks, self._column, self._rows = blocks, column, rows
        self._starts = np.cumsum([0, *(block.rows for block in blocks)])
        self._cells = lru_cache(BLOCKS_HELD)(self._read)
        self._reading = Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, index: int) -> str:
        """Return a picture's row, and its file."""
        block, row = self._place(index)
        first = next(
            n for n, b in enumerate(self._blocks) if b.file == self._blocks[block].file
        )
        row += int(self._starts[block] - self._starts[first])
        return f"{self._column} of row {row} in {self._blocks[block].file}"

    def content(self, index: int) -> bytes:
        """Return a picture as its file held it."""
        block, row = self._place(index)
        with self._reading:  # a block is read once
            cells = self._cells(block)
        content = cells[row].as_buffer()
        if content is None or not content.size:
            raise DatasetError(
                f"{self.name(index)} holds no bytes, only the name of a file perhaps. "
                "Write the data set with its pictures embedded, or take the row out."
            )
        check_limit("file", content.size, self.name(index))
        return bytes(content)

    def _place(self, index: int) -> tuple[int, int]:
        row = int(self._rows[index])
        block = int(np.searchsorted(self._starts, row, side="right")) - 1
        return block, row - int(self._starts[block])

    def _read(self, block: int) -> Any:
        column = self._blocks[block].read([self._column]).column(0).combine_chunks()
        if not holds_files(column.type):
            column = column.field("bytes")
        return column


def is_picture(kind: Any) -> bool:
    """Say whether a column of this type may hold pictures."""
    if str(kind)[:6] != "struct":
        return holds_files(kind)
    fields = [kind.field(n) for n in range(kind.num_fields)]
    return [holds_files(f.type) for f in fields if f.name == "bytes"] == [True]


def holds_files(kind: Any) -> bool:
    """Say whether a column of this type holds bytes themselves."""
    return str(kind) in ("binary", "large_binary")


USUAL_LABELS = ("label", "labels", "fine_label", "class")


@dataclass(frozen=True)
class ChosenColumns:
    """Which column is what; each may be missing."""

    image: str | None
    label: str | None
    texts: tuple[str, ...]
    owner: str | None
    group: str | None

    @property
    def writes(self) -> bool:
        """Whether pictures have captions: a class is then not needed."""
        return self.image is not None and bool(self.texts)

    @property
    def read_first(self) -> tuple[str, ...]:
        """Those that are read as a whole."""
        named = (self.label, *self.texts, self.owner, self.group)
        return tuple(dict.fromkeys(n for n in named if n is not None))


def choose_columns(
    columns: TableColumns, schema: Any, labelled: Sequence[str], path: Path
) -> ChosenColumns:
    """Return what each column is that matters.

    Values of ``labelled`` columns are numbers of named classes.
    """
    texts = tuple(filter(None, (t.strip() for t in (columns.text or "").split(","))))
    named = [("image", columns.image), ("label", columns.label)]
    named += [("owner", columns.owner), *(("text", text) for text in texts)]
    options = [(f"{what}-column", name) for what, name in named]
    for option, name in [*options, ("groups", columns.group)]:
        if name is not None and name not in schema.names:
            raise DatasetError(
                f"--{option} {name} was given, and {path} has the columns "
                f"{shown_columns(schema)}. Name one of these."
            )
    pictures = [field.name for field in schema if is_picture(field.type)]
    if columns.image is not None and columns.image not in pictures:
        raise DatasetError(
            f"--image-column {columns.image} was given, and in {path} it is "
            f"{schema.field(columns.image).type}: images are bytes, or bytes with a "
            f"path. {_others(pictures)}"
        )
    image = columns.image or (None if texts else _only(pictures, "image", path))
    if image is None and not texts and "text" in schema.names:
        texts = ("text",)
    label = columns.label
    if label is None and (not (image and texts) or len(labelled) == 1):
        usual = [name for name in USUAL_LABELS if name in schema.names]
        label = _only(labelled or usual[:1], "label", path)
    if (image or texts) and (label or (image and texts)):
        chosen = ChosenColumns(image, label, texts, columns.owner, columns.group)
        _refuse_nested(chosen.read_first, schema, path)
        return chosen
    missing = "--label-column" if image or texts else "--image-column or --text-column"
    raise DatasetError(
        f"{path} has the columns {shown_columns(schema)}, and what they are is not "
        f"known. Say it with {missing}."
    )


def shown_columns(schema: Any) -> str:
    """Return the columns with their types, as errors show them."""
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _refuse_nested(names: Sequence[str], schema: Any, path: Path) -> None:
    """Refuse what may be endlessly many values in a few bytes."""
    for name in names:
        kind = schema.field(name).type
        lists = str(kind).startswith(("list<", "large_list<", "fixed_size_list<"))
        if not (_is_plain(kind) or (lists and _is_text(kind.value_type))):
            raise DatasetError(
                f"The column {name} of {path} is {kind}, and labels, texts and owners "
                "are read from texts, numbers, and lists of texts. Write its values as "
                "such, or name another column."
            )


def _is_plain(kind: Any) -> bool:
    """Say whether each value has bytes of its own; of null there are only rows."""
    types = import_pyarrow().types
    bare = types.is_null(kind) or types.is_primitive(kind) or types.is_decimal(kind)
    return _is_text(kind) or holds_files(kind) or bare


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string")


def _only(found: Sequence[str], option: str, path: Path) -> str | None:
    if len(found) > 1:
        raise DatasetError(
            f"{path} has the columns {', '.join(found)}, each of which may be the "
            f"{option}. Say which: --{option}-column {found[0]}"
        )
    return found[0] if found else None


def _others(pictures: Sequence[str]) -> str:
    return f"Name {' or '.join(pictures)}." if pictures else "The table has none."
