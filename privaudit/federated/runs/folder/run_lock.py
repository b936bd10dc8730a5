"""One process trains a run at a time: by a lock of the system, or else by a file.

The system drops its lock when a process ends, however it ends. Some network file
systems and Windows have no such locks. There, a file is the lock: only one process can
make it, and it says which, so that one left behind can be taken away.
"""

import errno
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import MissingFileError, PrivauditError, RunInUseError
from privaudit.core.storage import storage_errors

LOCK, OWNER = ".lock", ".lock.owner"
_PAUSE = 0.02  # seconds between two looks at a lock
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def lock_run(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes from writing in a run's folder, until the end or a kill.

    Args:
        folder: The run's, which is there.
        patience: Seconds to wait for another process.

    Raises:
        RunInUseError: Another process holds it, or may hold it on another machine.
        StorageError: The folder cannot be written.
    """
    with storage_errors(folder / LOCK):
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
    give_up = time.monotonic() + patience
    try:
        while not (held := _try(handle, folder, give_up)):
            time.sleep(_PAUSE)
        with held:
            yield
    finally:
        os.close(handle)


def _try(
    handle: int, folder: Path, give_up: float
) -> AbstractContextManager[None] | None:
    """Return what holds the lock, or None to try again."""
    try:
        with storage_errors(folder / LOCK):
            return nullcontext() if _lock(handle, folder) else _owner_file(folder)
    except RunInUseError:
        if time.monotonic() >= give_up:
            raise
    return None


def _lock(handle: int, folder: Path) -> bool:
    """Say whether the system holds the lock; False where it has no locks."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunInUseError(
            f"Another process is training {folder}. Wait until it is done, or take "
            "another --name."
        ) from None
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _owner_file(folder: Path) -> AbstractContextManager[None]:
    """Make the file that is a lock; only where there is none can it be made."""
    path, owner = folder / OWNER, _about_me()
    if not _make(path, owner):
        _take_away(path)
        if not _make(path, owner):
            raise _held(path)
    return _removed_later(path, owner)


@contextmanager
def _removed_later(path: Path, mine: bytes) -> Iterator[None]:
    try:
        yield
    finally:
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _about_me() -> bytes:
    about = {"host": socket.gethostname(), "pid": os.getpid()}
    return json.dumps({**about, "token": secrets.token_hex(8)}).encode()


def _make(path: Path, content: bytes) -> bool:
    """Make a file that was not there; say whether it was so."""
    with storage_errors(path):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return True


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except MissingFileError:
        return b""


def _take_away(path: Path) -> None:
    """Remove the lock of a process of this machine that is gone.

    It is renamed first: of two who find it, one gets it, and who got another's new
    lock in its place puts it back.
    """
    owner = _read(path)
    if _is_alive(owner):
        raise _held(path)
    old = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with storage_errors(path):
        try:
            path.rename(old)
        except FileNotFoundError:
            return
        if _read(old) != owner:
            os.link(old, path)
        old.unlink()


def _is_alive(owner: bytes) -> bool:
    """Say whether a lock's process is there, or may be: nobody knows of other hosts."""
    try:
        said = json.loads(owner)
        host, process = str(said["host"]), int(said["pid"])
    except (ValueError, TypeError, KeyError):
        return True  # perhaps it is being written
    if host != socket.gethostname() or sys.platform == "win32":
        return True  # there, a signal of 0 would end the process
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _held(path: Path) -> PrivauditError:
    who = _read(path).decode(errors="replace")[:200]
    return RunInUseError(
        f"Another process is training {path.parent}: {who or 'unknown'}. There are no "
        f"locks on its file system, so {path.name} stands for one. Wait until that "
        f"process is done, or, if it is gone, remove {path}."
    )
