"""Tensors in safetensors files that are written in parts and read where they lie."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from privaudit.core.errors import StorageError, TranscriptError
from privaudit.core.lazy_torch import Tensor, torch
from privaudit.core.limits import open_regular, reading_errors
from privaudit.core.storage import (
    make_private_folder,
    padded,
    shapes_of,
    tensor_pieces,
    write_parts,
)
from privaudit.core.tensors import Tensors

_SPILLED = 2**25  # bytes that are worth a file


def write_rows(path: Path, parts: Sequence[Tensors]) -> None:
    """Write tensors whose rows come in parts; no more than one is copied at a time.

    Rows that are shorter than another part's are padded with zeros, as by
    :func:`join_rows`.

    Source: https://huggingface.co/docs/safetensors, "Format".

    Args:
        path: The file is replaced, or left as it was.
        parts: Tensors of the same names, types and dimensions, at least one part.
    """
    write_parts(path, tensor_pieces(parts))


def join_rows(parts: Sequence[Tensors]) -> dict[str, Tensor]:
    """Return parts one behind the other, each padded with zeros to the longest."""
    return {
        name: torch.cat([padded(part[name], shape) for part in parts])
        for name, shape in shapes_of(parts).items()
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
