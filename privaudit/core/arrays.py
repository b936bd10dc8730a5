"""Arrays in numpy's files, bounded before they are unpacked; no objects, ever."""

import io
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from zipfile import BadZipFile, ZipFile

import numpy as np
from jaxtyping import Shaped

from privaudit.core.bounded_files import open_regular, open_zip
from privaudit.core.limits import check_limit

DAMAGE = (  # what numpy and zipfile raise on a damaged file
    OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError,
    BadZipFile, zlib.error,
)  # fmt: skip

Array = Shaped[np.ndarray, "..."]
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npz(content: bytes, what: str) -> Mapping[str, Array]:
    """Return the arrays of an .npz file.

    Raises:
        LimitError: Unpacked, the arrays are larger than the bound.
        ValueError: An array declares more than is there, or holds Python objects; as
            do the other errors that zipfile has for damage.
    """
    with open_zip(io.BytesIO(content), what) as archive:
        sizes = [entry.file_size for entry in archive.infolist()]
        check_limit("arrays", sum(sizes), what)
        return {
            name.removesuffix(".npy"): _read_member(archive, name)
            for name in archive.namelist()
        }


def _read_member(archive: ZipFile, name: str) -> Array:
    with archive.open(name) as member:
        unpacked = cast(io.BufferedIOBase, member)  # a ZipExtFile is one
        _check_header(unpacked, archive.getinfo(name).file_size)
        unpacked.seek(0)
        array: Array = np.lib.format.read_array(unpacked, allow_pickle=False)
        return array


def map_npy(path: Path) -> Array:
    """Return the array of an .npy file without reading it.

    The file may be larger than the memory, so that no bound holds for it. What is
    written into the array stays in memory.

    Raises:
        OSError: It cannot be read, or is no plain file.
        ValueError: It declares more than is there, or holds Python objects.
    """
    with open_regular(path) as file:
        _check_header(file, os.fstat(file.fileno()).st_size)
    mapped: Array = np.load(path, mmap_mode="c", allow_pickle=False)
    return mapped


def _check_header(file: io.BufferedIOBase, size: int) -> None:
    """Check that an array's shape needs no more than is there."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"an array is in version {version} of numpy's form")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("an array holds Python objects, which are never read")
    declared = math.prod(shape) * max(1, dtype.itemsize)
    if min(shape, default=0) < 0 or declared > size:
        raise ValueError(f"an array declares {declared:,} bytes, of {size:,}")
