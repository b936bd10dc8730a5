"""Pictures in a column of a table."""

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Int

from privaudit.core.errors import DatasetError
from privaudit.core.limits import check_limit
from privaudit.datasets.images.picture_files import EncodedPictures
from privaudit.datasets.tables.block import Block

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
