"""Files that are either whole or not there: write, fsync, rename."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privaudit.errors import MissingFileError, StorageError, TranscriptError
from privaudit.tensors import Tensors

UNFINISHED = ".unfinished"


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one clear line.

    Raises:
        StorageError: Nothing could be written; what was there before is whole.
    """
    try:
        yield
    except OSError as error:
        reason = {
            errno.ENOSPC: "the disk is full",
            errno.EROFS: "the file system is read-only",
            errno.EACCES: "permission is denied",
            errno.ENOTDIR: "a part of the path is a file",
            errno.EEXIST: "a part of the path is a file",
        }.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(
            f"Cannot write {path}: {reason}. What was written before is whole: "
            "make room or choose another folder, and go on with --resume."
        ) from error


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


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        path.unlink()


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
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_bytes(path, text.encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        MissingFileError: There is no such file.
        TranscriptError: It is not JSON, so it was cut or altered.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise MissingFileError(f"There is no {path.name} in {path.parent}.") from None
    except ValueError as error:
        raise TranscriptError(
            f"{path} is not whole JSON ({error}): it was cut or altered. Restore it "
            "from a copy, or train again."
        ) from None


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write tensors as safetensors."""
    from safetensors.torch import save

    apart = {name: t.detach().cpu().clone() for name, t in tensors.items()}  # no views
    write_bytes(path, save({name: t.contiguous() for name, t in apart.items()}))


def read_tensors(path: Path) -> dict[str, Any]:
    """Read a safetensors file.

    Raises:
        MissingFileError: There is no such file.
        TranscriptError: It was cut or altered.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"There is no {path.name} in {path.parent}.") from None
    except SafetensorError as error:
        raise TranscriptError(
            f"{path} cannot be read ({error}): it was cut or altered."
        ) from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
