"""Parquet and Arrow files, some rows at a time."""

from pathlib import Path

from privaudit.core.bounded_files import open_regular, reading_errors
from privaudit.datasets.tables.arrow_blocks import arrow_blocks
from privaudit.datasets.tables.block import Block, readable_table
from privaudit.datasets.tables.parquet_blocks import parquet_blocks


def blocks_of(file: Path) -> list[Block]:
    """Return the rows of a .parquet or .arrow file, not yet read.

    An Arrow file is mapped, and its batches stay in it. Of a Parquet file only what it
    says of itself is kept, and it is closed.
    """
    with reading_errors(file):
        open_regular(file).close()
    with readable_table(file):
        return [*(parquet_blocks if file.suffix == ".parquet" else arrow_blocks)(file)]
