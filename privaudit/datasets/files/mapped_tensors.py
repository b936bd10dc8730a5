"""Tensors in safetensors files that are written in parts and read where they lie."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from privaudit.core.errors import StorageError, TranscriptError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.limits import open_regular, reading_errors
from privaudit.core.storage import SAFETENSORS_TYPES, make_private_folder, write_parts
from privaudit.core.tensors import Tensors

_SPILLED = 2**25  # bytes that are worth a file
Shapes = Mapping[str, tuple[int, ...]]


def write_rows(path: Path, parts: Sequence[Tensors]) -> None:
    """Write tensors whose rows come in parts; no more than one is copied at a time.

    Rows that are shorter than another part's are padded with zeros, as by
    :func:`join_rows`.

    Source: https://huggingface.co/docs/safetensors, "Format".

    Args:
        path: The file is replaced, or left as it was.
        parts: Tensors of the same names, types and dimensions, at least one part.
    """
    write_parts(path, _pieces(parts))


def join_rows(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return parts one behind the other, each padded with zeros to the longest."""
    return {
        name: torch.cat([_padded(part[name], shape) for part in parts])
        for name, shape in _shapes(parts).items()
    }


def spilled(tensors: Tensors, folder: Path) -> Tensors:
    """Return tensors, those of many bytes in a mapped file that nobody else can open.

    The file has no name any more, and goes when the tensors do. Where it cannot be
    written, they stay in memory.

    Args:
        tensors: With one row for each record.
        folder: On a disk with room; it is made for its owner only.
    """
    if sum(tensor.nbytes for tensor in tensors.values()) < _SPILLED:
        return tensors
    with suppress(StorageError):
        make_private_folder(folder)
        with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as place:
            path = Path(place) / "tensors.safetensors"
            write_rows(path, [tensors])
            return map_tensors(path)
    return tensors


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Return a safetensors file's tensors without reading them.

    The system reads what is used, and drops it again where memory is short: the file
    may be larger than the memory, so that no bound holds for it. What is written into
    the tensors stays in memory. One that was cut or altered raises a TranscriptError.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with reading_errors(path):
        open_regular(path).close()
        try:
            return load_file(path)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise TranscriptError(
                f"{path} cannot be read ({error}): it was cut or altered."
            ) from None


def _pieces(parts: Sequence[Tensors]) -> Iterator[bytes | memoryview]:
    """Yield the file, piece by piece."""
    shapes, first = _shapes(parts), parts[0]
    # Wide numbers first: then each tensor begins at a multiple of its numbers' width.
    names = sorted(shapes, key=lambda name: -first[name].itemsize)
    entries, end = {}, 0
    for name in names:
        begin, end = end, end + math.prod(shapes[name]) * first[name].itemsize
        entries[name] = {
            "dtype": SAFETENSORS_TYPES[first[name].dtype],
            "shape": shapes[name],
            "data_offsets": (begin, end),
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in names:
        for part in parts:
            rows = _padded(part[name].detach().cpu(), shapes[name]).contiguous()
            yield rows.reshape(-1).view(torch.uint8).numpy().data


def _shapes(parts: Sequence[Tensors]) -> Shapes:
    """Return the shape of all parts' rows together."""
    return {
        name: (
            sum(len(part[name]) for part in parts),
            *map(max, zip(*(part[name].shape[1:] for part in parts), strict=True)),
        )
        for name in parts[0]
    }


def _padded(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    if rows.shape[1:] == shape[1:]:
        return rows
    padded = rows.new_zeros(len(rows), *shape[1:])
    padded[tuple(map(slice, rows.shape))] = rows
    return padded
