"""Files that are either whole or not there: write, fsync, rename."""

import errno
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from privaudit.errors import (
    ConfigError,
    MissingFileError,
    StorageError,
    TranscriptError,
)
from privaudit.tensors import Tensors

UNFINISHED = ".unfinished"
LOCK = ".lock"
_PAUSE = 0.02  # seconds between two looks at a lock
REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.EISDIR: "it is a folder",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one clear line.

    Raises:
        StorageError: Nothing could be written; what was there before is whole.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {path}: {_reason(error)}. What was written before is whole: "
            "make room or choose another folder, and go on with --resume."
        ) from error


def _reason(error: OSError) -> str:
    return REASONS.get(error.errno or 0, error.strerror or str(error))


@contextmanager
def lock_run(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes from writing in a run's folder, until the end or a kill.

    The system holds the lock, so a killed process leaves none behind. Windows and
    some network file systems have no such locks: there, nothing is kept away.

    Args:
        folder: The run's, which is there.
        patience: Seconds to wait for another process.

    Raises:
        ConfigError: Another process holds it.
        StorageError: The folder cannot be written.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with storage_errors(folder / LOCK):
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):  # a file system without locks
            give_up = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= give_up:
                        raise ConfigError(
                            f"Another process is training {folder}. Wait until it is "
                            "done, or take another --name."
                        ) from None
                time.sleep(_PAUSE)
        yield
    finally:
        os.close(handle)


def make_private_folder(path: Path) -> Path:
    """Create a folder that only its owner can enter, and return it."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)
    return path


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file by ``content``, or leave it as it was.

    Raises:
        StorageError: The folder cannot be written.
    """
    with storage_errors(path):
        handle, name = tempfile.mkstemp(UNFINISHED, f".{path.name}.", path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append_lines(path: Path, lines: list[str]) -> None:
    """Append whole lines and wait until they are on the disk.

    Raises:
        StorageError: The folder cannot be written.
    """
    with storage_errors(path), path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON that a person can read and a diff can compare."""
    write_bytes(path, to_json(content))


def to_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON as :func:`write_json` writes it."""
    return f"{json.dumps(content, indent=2, allow_nan=False)}\n".encode()


def read_bytes(path: Path) -> bytes:
    """Read a file.

    Raises:
        MissingFileError: There is no such file, or it is not readable.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError(f"There is no {path.name} in {path.parent}.") from None
    except OSError as error:
        raise MissingFileError(
            f"{path} cannot be read: {_reason(error)}. Make it a file that you may "
            "read, or name another."
        ) from None


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content.

    Raises:
        MissingFileError: There is no such file, or it is not readable.
    """
    return hashlib.sha256(read_bytes(path)).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        MissingFileError: There is no such file, or it is not readable.
        TranscriptError: It holds no JSON object, so it was cut or altered.
    """
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object that a file's content is.

    Raises:
        TranscriptError: It is none, so it was cut or altered.
    """
    try:
        found = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise TranscriptError(
            f"{path} is not whole JSON ({error}): it was cut or altered. Restore it "
            "from a copy, or train again."
        ) from None
    if not isinstance(found, dict):
        raise TranscriptError(
            f"{path} holds a {type(found).__name__} in place of a JSON object: it was "
            "altered. Restore it from a copy, or train again."
        )
    return found


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors as safetensors."""
    from safetensors.torch import save

    apart = {name: t.detach().cpu().clone() for name, t in tensors.items()}  # no views
    write_bytes(path, save({name: t.contiguous() for name, t in apart.items()}))


def read_tensors(path: Path) -> dict[str, Any]:
    """Read a safetensors file.

    Raises:
        MissingFileError: There is no such file, or it is not readable.
        TranscriptError: It was cut or altered.
    """
    return parse_tensors(read_bytes(path), path)


def parse_tensors(content: bytes, path: Path) -> dict[str, Any]:
    """Return the tensors that a file's content holds.

    Raises:
        TranscriptError: It was cut or altered.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise TranscriptError(
            f"{path} cannot be read ({error}): it was cut or altered."
        ) from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
