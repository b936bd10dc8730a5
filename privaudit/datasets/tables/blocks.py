"""Parquet and Arrow files, some rows at a time."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from privaudit.core.bounded_files import open_regular, reading_errors
from privaudit.core.errors import ConfigError, DatasetError, PrivauditError
from privaudit.core.limits import check_limit


@dataclass(frozen=True)
class Block:
    """Rows that are read together: a row group of Parquet, a record batch of Arrow.

    Attributes:
        file: Where they lie.
        rows: How many.
        schema: The columns with their types, as pyarrow has them.
        read: Returns some columns of all rows as a pyarrow table.
    """

    file: Path
    rows: int
    schema: Any
    read: Callable[[Sequence[str]], Any]


def import_pyarrow() -> Any:
    """Import pyarrow.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f"The data set hf is read with pyarrow, which cannot be imported ({error})."
            " Install it: pip install 'privaudit[hf]'."
        ) from None


def blocks_of(file: Path) -> list[Block]:
    """Return the rows of a .parquet or .arrow file, not yet read.

    An Arrow file is mapped, and its batches stay in it.

    Raises:
        MissingFileError: There is no such file, or it is no plain one.
        DatasetError: It is damaged.
    """
    with reading_errors(file):
        open_regular(file).close()
    with readable_table(file):
        return [*(_parquet if file.suffix == ".parquet" else _arrow)(file)]


@contextmanager
def readable_table(file: Path) -> Iterator[None]:
    """Turn what pyarrow raises on a damaged file into one clear line."""
    try:
        yield
    except PrivauditError:
        raise
    except (import_pyarrow().lib.ArrowException, OSError, ValueError, MemoryError) as e:
        reason = str(e).strip().partition("\n")[0] or type(e).__name__
        raise DatasetError(
            f"{file} cannot be read ({reason}): it is damaged, or no table of its "
            "kind. Get it again."
        ) from None


def _parquet(file: Path) -> Iterator[Block]:
    import_pyarrow()
    parquet = importlib.import_module("pyarrow.parquet")
    opened = parquet.ParquetFile(file, memory_map=True)
    check_limit("records", opened.metadata.num_rows, str(file))

    def read(group: int, columns: Sequence[str]) -> Any:
        about = opened.metadata.row_group(group)
        parts = [about.column(n) for n in range(about.num_columns)]
        wanted = [p for p in parts if p.path_in_schema.partition(".")[0] in columns]
        size = sum(part.total_uncompressed_size for part in wanted)
        check_limit("arrays", size, f"Row group {group} of {file}")
        with readable_table(file):
            return opened.read_row_group(group, [*columns], use_threads=False)

    for group in range(opened.num_row_groups):
        rows = opened.metadata.row_group(group).num_rows
        yield Block(file, rows, opened.schema_arrow, partial(read, group))


def _arrow(file: Path) -> Iterator[Block]:
    pyarrow = import_pyarrow()
    before, rows = pyarrow.total_allocated_bytes(), 0
    for batch in _batches(pyarrow.memory_map(str(file))):
        unpacked = pyarrow.total_allocated_bytes() - before  # none if not compressed
        check_limit("arrays", max(0, unpacked), str(file))
        batch.validate(full=True)  # offsets that lead out of the file
        rows += batch.num_rows
        check_limit("records", rows, str(file))
        table = pyarrow.Table.from_batches([batch])
        yield Block(file, batch.num_rows, batch.schema, table.select)


def _batches(mapped: Any) -> Iterator[Any]:
    ipc = import_pyarrow().ipc
    try:
        stream = ipc.open_stream(mapped)
    except import_pyarrow().lib.ArrowInvalid:  # the form with an index at its end
        opened = ipc.open_file(mapped)
        yield from (opened.get_batch(n) for n in range(opened.num_record_batches))
    else:
        yield from stream
