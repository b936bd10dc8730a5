"""Files that are either whole or not there: write, fsync, rename; and numpy's files.

Everywhere: what cannot be written is a StorageError, and what was there before is whole.
What is missing or not readable is a MissingFileError, what is larger than a bound a
LimitError, and what was cut or altered a TranscriptError. Arrays are bounded before they
are unpacked, and hold no objects, ever.
"""

import errno
import hashlib
import io
import json
import math
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast
from zipfile import BadZipFile, ZipFile

import numpy as np
from jaxtyping import Shaped

from privaudit.core.errors import (
    ConfigError,
    PrivauditError,
    StorageError,
    TranscriptError,
    shown,
)
from privaudit.core.lazy_torch import Tensor, late, torch
from privaudit.core.limits import (
    check_json,
    check_limit,
    open_regular,
    open_zip,
    reading_errors,
    reason_of,
)
from privaudit.core.limits import read_bytes as read_bytes
from privaudit.core.tensors import Tensors, content_of

UNFINISHED = ".unfinished"
SAFETENSORS_TYPES: Mapping[torch.dtype, str] = late(
    lambda: {  # widest first: see write_tensors
        torch.uint64: "U64",
        torch.int64: "I64",
        torch.float64: "F64",
        torch.complex64: "C64",
        torch.float32: "F32",
        torch.uint32: "U32",
        torch.int32: "I32",
        torch.bfloat16: "BF16",
        torch.float16: "F16",
        torch.uint16: "U16",
        torch.int16: "I16",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e5m2: "F8_E5M2",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
)
"""What safetensors calls types of numbers."""


def cache_folder() -> Path:
    """Return ``$PRIVAUDIT_CACHE``, or ``~/.cache/privaudit`` where it is not set.

    Raises:
        ConfigError: The system names no home for this user.
    """
    if named := os.environ.get("PRIVAUDIT_CACHE"):
        return Path(named)
    try:
        return Path("~/.cache/privaudit").expanduser()
    except RuntimeError:
        raise ConfigError(
            "This user has no home, so there is no place for a cache. Set "
            "PRIVAUDIT_CACHE to a folder."
        ) from None


def kept(folder: str, name: str, state: object, make: Callable[[], Any]) -> Any:
    """Return what was made of the same state before, in the cache folder, or make it.

    ``name`` is what there is one of; another ``state``, both as JSON, takes its place.
    """
    file = f"{hashlib.sha256(name.encode()).hexdigest()}.json"
    place = cache_folder() / folder / file
    with suppress(PrivauditError, ValueError, KeyError):
        known = read_json(place)
        if known["state"] == state:
            return known["made"]
    made = make()
    with suppress(PrivauditError):  # then it is made again
        make_private_folder(place.parent)
        write_json(place, {"state": state, "made": made})
    return made


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one clear line."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {path}: {reason_of(error)}. What was written before is "
            "whole: make room or choose another folder, and go on with --resume."
        ) from error


def make_private_folder(path: Path) -> Path:
    """Create a folder that only its owner can enter, and return it."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
    return path


def write_bytes(
    path: Path, content: bytes, ready: Callable[[], None] = lambda: None
) -> None:
    """Replace a file by ``content``, or leave it as it was.

    ``ready`` is called before the new file takes the place of the old one, which stays if
    this raises. What is there and no plain file is not replaced.
    """
    write_parts(path, [content], ready)


def write_parts(
    path: Path,
    parts: Iterable[bytes | memoryview],
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Replace a file as :func:`write_bytes` does, by parts that are made meanwhile."""
    with storage_errors(path):
        refuse_special(path)
        handle, name = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            ready()
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def refuse_special(path: Path) -> None:
    """Refuse, by an OSError, to put a file in the place of a device or a pipe."""
    with suppress(FileNotFoundError):
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # renaming refuses those
            raise OSError(errno.EBADF, "what is there is not a plain file")


def append_lines(path: Path, lines: list[str]) -> None:
    """Append whole lines and wait until they are on the disk."""
    with storage_errors(path), path.open("a", encoding="utf-8") as file:
        add_lines(file, lines)


def add_lines(file: IO[str], lines: Iterable[str]) -> None:
    """Write whole lines into an open file and wait until they are on the disk."""
    file.writelines(f"{line}\n" for line in lines)
    file.flush()
    os.fsync(file.fileno())


def write_json(
    path: Path, content: Mapping[str, Any], ready: Callable[[], None] = lambda: None
) -> None:
    """Write JSON that a person can read and a diff can compare."""
    write_bytes(path, to_json(content), ready)


def to_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON as :func:`write_json` writes it."""
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n".encode()


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, no larger than any of a run may be."""
    with reading_errors(path), open_regular(path) as file:
        check_limit("tensors", os.fstat(file.fileno()).st_size, str(path))
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object that a file's content is; else it was cut or altered."""
    check_json(content, str(path))
    try:
        parsed = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise TranscriptError(
            f"{path} is not whole JSON ({error}): it was cut or altered. Restore it "
            "from a copy, or train again."
        ) from None
    if not isinstance(parsed, dict):
        raise TranscriptError(
            f"{path} holds a {type(parsed).__name__} in place of a JSON object: it was "
            "altered. Restore it from a copy, or train again."
        )
    return parsed


def write_tensors(
    path: Path, tensors: Tensors, ready: Callable[[], None] = lambda: None
) -> None:
    """Write tensors as safetensors, copying none of them: the bytes are the library's.

    Source: https://huggingface.co/docs/safetensors, "Format".

    Raises:
        StorageError: The folder cannot be written, or the format has no such type.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_TYPES:
            raise StorageError(
                f"Cannot write {shown(name)} to {path}: safetensors has no "
                f"{tensor.dtype}. Convert it, such as to float32."
            )
    write_parts(path, tensor_pieces([tensors]), ready)


def tensor_pieces(parts: Sequence[Tensors]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file of parts one behind the other, piece by piece."""
    shapes, first = shapes_of(parts), parts[0]
    widest_first = list(SAFETENSORS_TYPES)
    names = sorted(shapes, key=lambda n: (widest_first.index(first[n].dtype), n))
    entries, end = {}, 0
    for name in names:
        begin, end = end, end + math.prod(shapes[name]) * first[name].itemsize
        entries[name] = {
            "dtype": SAFETENSORS_TYPES[first[name].dtype],
            "shape": [*shapes[name]],
            "data_offsets": [begin, end],
        }
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in names:
        for part in parts:
            yield content_of(padded(part[name], shapes[name]))


def shapes_of(parts: Sequence[Tensors]) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of all parts' rows together; of one part its own."""
    if len(parts) == 1:
        return {name: tuple(tensor.shape) for name, tensor in parts[0].items()}
    return {
        name: (
            sum(len(part[name]) for part in parts),
            *map(max, zip(*(part[name].shape[1:] for part in parts), strict=True)),
        )
        for name in parts[0]
    }


def padded(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return rows with zeros behind those that are shorter."""
    if rows.shape[1:] == shape[1:]:
        return rows
    whole = rows.new_zeros(len(rows), *shape[1:])
    whole[tuple(map(slice, rows.shape))] = rows
    return whole


def read_tensors(path: Path, limit: str = "tensors") -> dict[str, Any]:
    """Read a safetensors file; its header never declares more than it holds."""
    return parse_tensors(read_bytes(path, limit), path)


def parse_tensors(content: bytes, path: Path) -> dict[str, Any]:
    """Return the tensors that a file's content holds."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TranscriptError(
            f"{path} cannot be read ({error}): it was cut or altered."
        ) from None


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # opens no folder, and writes names by itself
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        return np.lib.format.read_array(unpacked, allow_pickle=False)


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
    return np.load(path, mmap_mode="c", allow_pickle=False)


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
