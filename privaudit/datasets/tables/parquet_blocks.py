"""The row groups of a Parquet file.

A value that a group repeats is in the file once, so that what a group unpacks to may be
millions of times what the file declares: it is added up while it is unpacked.
"""

import importlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from privaudit.core.limits import check_limit, most
from privaudit.datasets.tables.block import Block, import_pyarrow, readable_table


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
