"""A run's folder: one process writes in it at a time, and removes nothing but a run's own files.

One process by a lock of the system, and a lease. The system drops its lock when a process
ends, however it ends, so that another goes on at once. Where there are no locks (some
network file systems, Windows), or another machine cannot see them, the lease decides:
see :mod:`privaudit.runs.lease`.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from privaudit.core.errors import ConfigError, RunInUseError
from privaudit.core.limits import open_regular
from privaudit.core.storage import (
    UNFINISHED,
    make_private_folder,
    storage_errors,
    write_bytes,
)
from privaudit.runs.lease import (
    LEASE,
    MOST_BYTES,
    Lease,
    lease_name,
    lease_numbers,
    take_lease,
)
from privaudit.runs.own_files import (
    BEGUN,
    FOLDERS,
    HEADER,
    WRITTEN,
    check_above,
    refuse_link,
)
from privaudit.runs.store import forget, pull, remote_lease, url_of

LOCK = ".lock"
_PREPARED = f".run.json.*{UNFINISHED}"  # about to be put in place
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def lock_run(folder: Path, *, patience: float = 0.0) -> Iterator[Lease]:
    """Keep other processes from writing in a run's folder, until the end or a kill.

    ``patience`` are seconds to wait for another process.

    Yields:
        The lease: to be checked before anything is written that counts.

    Raises:
        RunInUseError: Another process holds it.
        StorageError: The folder cannot be written.
    """
    with (
        _near_lease(folder, patience) as lease,
        remote_lease(folder, lease, patience) as held,
    ):
        _drop_unfinished(folder)
        yield held


def refresh(folder: Path) -> None:
    """Take a run's files from its store, unless a process here is writing them.

    Raises:
        LimitError: A file is larger than a bound.
        StorageError: The store, or the cache, cannot be reached.
    """
    if url_of(folder) is None:
        return
    make_private_folder(folder)
    with suppress(RunInUseError), _near_lease(folder, 0.0):
        pull(folder)


@contextmanager
def _near_lease(folder: Path, patience: float) -> Iterator[Lease]:
    with storage_errors(folder / LOCK):
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
    try:
        files = FolderLeases(folder)
        lease = take_lease(files, lock=lambda: _lock(handle, folder), patience=patience)
        try:
            yield lease
        finally:
            lease.end()
    finally:
        os.close(handle)


def _drop_unfinished(folder: Path) -> None:
    """Remove the run.json that an owner before was about to put in place.

    If it wakes behind its last look at its lease, it has nothing to rename any more.
    """
    with storage_errors(folder):
        for path in folder.glob(_PREPARED):
            path.unlink(missing_ok=True)


def _lock(handle: int, folder: Path) -> bool:
    """Say whether this process holds the system's lock: not where there are none."""
    if sys.platform == "win32":
        return False
    import fcntl

    with storage_errors(folder / LOCK):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
    return True


class FolderLeases:
    """Leases as files in a run's folder.

    The owner writes through the handle with which it made its file: if another has
    removed that file, no other is touched. The last file stays and says that it has
    ended: a number is never made twice.
    """

    pause = 0.02

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._folder, self._handle = folder, -1

    def newest(self) -> tuple[int, bytes]:
        """Return the highest number and its content; 0 where there is none."""
        with storage_errors(self._folder):
            number = max(self._numbers(), default=0)
        content = b""
        if number:
            with suppress(OSError), open_regular(self._path(number)) as file:
                content = file.read(MOST_BYTES)
        return number, content

    def make(self, number: int, content: bytes) -> bool:
        """Make a file that is not there; say whether it was so."""
        path, flags = self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with storage_errors(path):
            try:
                self._handle = os.open(path, flags, 0o600)
            except FileExistsError:
                return False
            self.renew(number, content)
        return True

    def renew(self, number: int, content: bytes) -> None:
        """Replace the content of the file that was made."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        os.write(self._handle, content)
        os.fsync(self._handle)  # other machines see it

    def end(self, number: int, content: bytes) -> None:
        """Leave a file that says that the lease has ended."""
        try:
            self.renew(number, content)
        finally:
            os.close(self._handle)

    def drop_before(self, number: int) -> None:
        """Remove the files with lower numbers."""
        for one in self._numbers():
            if one < number:
                with suppress(OSError):  # one that is open stays, on some systems
                    self._path(one).unlink()

    def _numbers(self) -> list[int]:
        return lease_numbers(path.name for path in self._folder.iterdir())

    def _path(self, number: int) -> Path:
        return self._folder / lease_name(number)


_SHOWN = 3  # files that an error names


def check_place(path: Path, *, fresh: bool) -> None:
    """Refuse to train in a folder whose files could be lost, before any is touched.

    ``fresh``: whether what an earlier run wrote there may go.

    Raises:
        ConfigError: It is not empty and no run; the text says what to do.
        StorageError: It cannot be read, or lies in another run.
    """
    check_above(path)
    for folder in (path, *(path / name for name in FOLDERS)):
        refuse_link(folder)
    if fresh or (path / HEADER).exists() or (path / BEGUN).exists():
        return
    foreign, files = _split(path)
    files = [name for name in files if not name.endswith(UNFINISHED)]  # of no content
    if files:
        raise ConfigError(
            f"{path} holds {some_files(files)} and no {HEADER}: a run that lost it. "
            f"Restore {HEADER} from a copy, take another --name, or --fresh to remove "
            "what the run wrote and start over."
        )
    if foreign:
        raise ConfigError(
            f"{path} holds {some_files(foreign)} and no run. Use another --name or "
            "--runs, or --fresh to train there all the same: these files stay."
        )


def clear_run(path: Path, ready: Callable[[], None] = lambda: None) -> None:
    """Remove what a run wrote, and make its folders.

    run.json goes first, so that a kill leaves no mixture; a mark says that the rest may
    go, too. Files that no run writes stay, and so do the folders that they are in.

    ``ready`` raises if the run is another's by now.
    """
    check_place(path, fresh=True)
    forget(path, lambda _: True, ready)
    write_bytes(path / BEGUN, b"", ready)
    with storage_errors(path):
        (path / HEADER).unlink(missing_ok=True)
        for name in _split(path)[1]:
            if name != BEGUN:
                ready()
                (path / name).unlink()
        _remove_empty(path)
    for name in FOLDERS:
        make_private_folder(path / name)


def remove_unfinished(path: Path) -> None:
    """Remove what a killed process was writing, and the mark of a beginning."""
    with storage_errors(path):
        for name in _split(path)[1]:
            if name.endswith(UNFINISHED):
                (path / name).unlink(missing_ok=True)


def foreign_files(path: Path) -> list[str]:
    """Return the files in a run's folder that no run writes, by their path in it."""
    return _split(path)[0]


def _split(path: Path) -> tuple[list[str], list[str]]:
    """Return the files that no run writes, and those that one does."""
    with storage_errors(path):
        names = sorted(_files(path)) if path.exists() else []
    written = [name for name in names if WRITTEN.fullmatch(name)]
    foreign = [n for n in names if n not in {*written, LOCK} and not LEASE.fullmatch(n)]
    return foreign, written


def _files(path: Path) -> Iterator[str]:
    """Yield what is in a folder; links are entries, wherever they lead."""
    for folder, folders, files in os.walk(path, onerror=_raise):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*files, *links]:
            yield (Path(folder) / name).relative_to(path).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _remove_empty(path: Path) -> None:
    """Remove the empty folders of a run, the deepest first."""
    places = [p for name in FOLDERS for p in (path / name, *(path / name).glob("*"))]
    for folder in reversed(places):
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def some_files(names: list[str]) -> str:
    """Return the first of some files' names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more files" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
