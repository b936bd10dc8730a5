"""The record batches of an Arrow file, which stay in it.

Nothing is unpacked: batches that are compressed are refused, and so are those with
numbered values (dictionaries), as ``save_to_disk`` writes neither.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import Any

from privaudit.core.errors import DatasetError
from privaudit.core.limits import check_limit
from privaudit.datasets.tables.block import Block, import_pyarrow

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
