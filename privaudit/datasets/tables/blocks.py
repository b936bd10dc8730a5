"""Blocks of Parquet and Arrow files: rows that are read together, some at a time.

The record batches of an Arrow file stay in it. Nothing is unpacked: batches that are
compressed are refused, and so are those with numbered values (dictionaries), as
``save_to_disk`` writes neither.

A value that a row group of Parquet repeats is in the file once, so that what a group
unpacks to may be millions of times what the file declares: it is added up while it is
unpacked.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import unpack_from
from typing import Any

from privaudit.core.errors import ConfigError, DatasetError, PrivauditError
from privaudit.core.formatting import install_line
from privaudit.core.limits import check_limit, most, open_regular, reading_errors


@dataclass(frozen=True)
class Block:
    """Rows that are read together: a row group of Parquet, a record batch of Arrow.

    Attributes:
        schema: The columns with their types, as pyarrow has them.
        read: Returns some columns of all rows as a pyarrow table.
    """

    file: Path
    rows: int
    schema: Any
    read: Callable[[Sequence[str]], Any]


def import_pyarrow() -> Any:
    """Import pyarrow."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError(
            f"The data set hf is read with pyarrow, which cannot be imported ({error})."
            f" Install it: {install_line('hf')}."
        ) from None


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


MAGIC = b"ARROW1\0\0"  # how the form with an index at its end begins
_HEADER, _COMPRESSION = 2, 3  # fields of the tables Message and RecordBatch
_OLDER = b"ARROW:experimental_compression"


def arrow_blocks(file: Path) -> Iterator[Block]:
    """Yield the record batches of a file, of either form."""
    pyarrow = import_pyarrow()
    _refuse_packed(file)
    rows = 0
    for batch in pyarrow.ipc.open_stream(_stream(file)):
        rows += batch.num_rows
        check_limit("records", rows, str(file))
        batch.validate(full=True)  # offsets that lead out of the file
        table = pyarrow.Table.from_batches([batch])
        yield Block(file, batch.num_rows, batch.schema, table.select)


def _stream(file: Path) -> Any:
    """Return the mapped file, from where its messages begin."""
    mapped = import_pyarrow().memory_map(str(file))
    if mapped.read(len(MAGIC)) != MAGIC:
        mapped.seek(0)
    return mapped


def _refuse_packed(file: Path) -> None:
    for message in _messages(file):
        if message.type == "dictionary":
            raise DatasetError(
                f"{file} holds columns of numbered values (dictionaries), which are not "
                "read. Write them as plain values."
            )
        if message.type == "record batch" and _packed(message.metadata.to_pybytes()):
            raise DatasetError(
                f"{file} is compressed inside, and what it unpacks to is not known "
                "before. Write it with compression='uncompressed', or as Parquet."
            )


def _messages(file: Path) -> Iterator[Any]:
    reader = import_pyarrow().ipc.MessageReader.open_stream(_stream(file))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _packed(message: bytes) -> bool:
    """Say whether a message's record batch is compressed.

    pyarrow has checked that all places lie within the message.

    Source: https://github.com/apache/arrow, format/Message.fbs, and "FlatBuffers
    Internals" on how tables lie.
    """
    if _OLDER in message:
        return True
    at = _field(message, unpack_from("<I", message)[0], _HEADER)
    batch = at + unpack_from("<I", message, at)[0]
    return _field(message, batch, _COMPRESSION) != 0


def _field(message: bytes, table: int, number: int) -> int:
    """Return where a field of a table is; 0 if it has none."""
    fields = table - unpack_from("<i", message, table)[0]
    place = 4 + 2 * number
    if place >= unpack_from("<H", message, fields)[0]:
        return 0
    offset = int(unpack_from("<H", message, fields + place)[0])
    return table + offset if offset else 0


def parquet_blocks(file: Path) -> Iterator[Block]:
    """Yield the row groups of a file, which is open no longer than that."""
    with _opened(file) as opened:
        about, schema = opened.metadata, opened.schema_arrow
    check_limit("records", about.num_rows, str(file))
    for group in range(about.num_row_groups):
        read = partial(_read, file, about, schema, group)
        yield Block(file, about.row_group(group).num_rows, schema, read)


def _opened(file: Path, **how: Any) -> Any:
    import_pyarrow()
    parquet = importlib.import_module("pyarrow.parquet")
    return parquet.ParquetFile(file, memory_map=True, **how)


def _read(
    file: Path, about: Any, schema: Any, group: int, columns: Sequence[str]
) -> Any:
    """Return some columns of a group, as many rows at a time as the bound allows.

    A value is no larger than all of them are declared to be. Where a row has a list of
    them, they are read as numbers of different values, and added up before each is
    copied to its places.
    """
    what, size = f"Row group {group} of {file}", 0
    lists, declared = _declared(about, group, columns, what)
    rows = max(
        1, min(about.row_group(group).num_rows, most("arrays") // (declared + 1))
    )
    how = {"row_groups": [group], "columns": [*columns], "use_threads": False}
    batches = []
    with (
        readable_table(file),
        _opened(file, metadata=about, read_dictionary=lists) as opened,
    ):
        for batch in opened.iter_batches(rows, **how):
            size += sum(map(_unpacked, batch.columns))
            check_limit("arrays", size, what)
            batches.append(_plain(batch, schema))
    if not batches:
        return schema.empty_table().select([*columns])
    return import_pyarrow().Table.from_batches(batches)


def _declared(
    about: Any, group: int, columns: Sequence[str], what: str
) -> tuple[list[str], int]:
    """Return which columns have lists of texts, and the bytes that all declare."""
    parts = [about.row_group(group).column(n) for n in range(about.num_columns)]
    lists, size = [], 0
    for number, part in enumerate(parts):
        path = part.path_in_schema
        if not any(f"{path}.".startswith(f"{name}.") for name in columns):
            continue
        check_limit("records", part.num_values, what)
        size += part.total_uncompressed_size
        check_limit("arrays", size, what)
        column = about.schema.column(number)
        if column.max_repetition_level and column.physical_type == "BYTE_ARRAY":
            lists.append(path)
    return lists, size


def _unpacked(array: Any) -> int:
    """Return how many bytes an array is with each value at its place."""
    values = _numbered(array)
    if values is None:
        return int(array.nbytes)
    compute = importlib.import_module("pyarrow.compute")
    lengths = compute.binary_length(values.dictionary)
    return int(array.nbytes + (compute.sum(lengths.take(values.indices)).as_py() or 0))


def _numbered(array: Any) -> Any:
    """Return the items of lists that are numbers of different values; or None."""
    values = getattr(array, "values", None)
    return values if hasattr(values, "dictionary") else None


def _plain(batch: Any, schema: Any) -> Any:
    """Return the same rows, with the values of lists at their places."""
    columns = [
        array if _numbered(array) is None else array.cast(schema.field(name).type)
        for name, array in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return import_pyarrow().RecordBatch.from_arrays(columns, batch.schema.names)


def blocks_of(file: Path) -> list[Block]:
    """Return the rows of a .parquet or .arrow file, not yet read.

    An Arrow file is mapped, and its batches stay in it. Of a Parquet file only what it
    says of itself is kept, and it is closed.
    """
    with reading_errors(file):
        open_regular(file).close()
    with readable_table(file):
        return [*(parquet_blocks if file.suffix == ".parquet" else arrow_blocks)(file)]
