"""Working copies of runs that lie in an object store: what comes here, what goes there.

A store's folder has a folder in the cache, named after its URL, in which runs are
written and read as anywhere else. The store decides what a run is: a file here counts
only as long as the store has the version that it was copied to or from. A commit uploads
what changed, run.json last, so that a writer that dies in between leaves the run as it
was; everything is held against run.json, as in a folder.
"""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from privaudit.core.bounded_files import read_bytes
from privaudit.core.errors import MissingFileError, PrivauditError
from privaudit.core.limits import check_limit, limit_of
from privaudit.core.storage import (
    cache_folder,
    make_private_folder,
    storage_errors,
    write_bytes,
    write_json,
    write_parts,
)
from privaudit.federated.runs.folder.lease import Lease, take_lease
from privaudit.federated.runs.folder.own_files import HEADER, WRITTEN, make_folders
from privaudit.federated.runs.folder.remote_store import (
    RemoteFile,
    RemoteFolder,
    RemoteLeases,
    check_scheme,
)

_ADDRESS = ".url"  # the file of a working copy that says of what
_WAITS, _LOOKS = 60.0, 0.02  # seconds for another reader, and between two looks
_LATER = ".safetensors"  # files of this ending come when they are read
_SHARED = 1 << 20  # bytes of a file beside the runs that are read
_NOT = re.compile(r"audits/signals/.*|.*\.html")  # is made of the rest, here


class _Copied(NamedTuple):
    """A file that is the same here and there.

    Attributes:
        size: In the store, in bytes.
        version: In the store.
        here: Size and time of change of the copy, if there is one.
    """

    size: int
    version: str
    here: tuple[int, int] | None


_State = dict[str, _Copied]
_STATES = TypeAdapter(_State)


def copy_of(url: str) -> Path:
    """Return the folder in which runs of a store's folder are worked on.

    Raises:
        ConfigError: Runs cannot lie there; nothing was made.
        StorageError: The cache cannot be written.
    """
    url = url.rstrip("/")
    check_scheme(url)
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    folder = make_private_folder(_copies() / name)
    if not (folder / _ADDRESS).exists():
        write_bytes(folder / _ADDRESS, url.encode())
    return folder


def url_of(path: Path) -> str | None:
    """Return the URL of what a folder is a working copy of; None if it is none."""
    with suppress(ValueError):
        parts = path.resolve().relative_to(_copies().resolve()).parts
        with suppress(MissingFileError):
            url = read_bytes(_copies() / parts[0] / _ADDRESS).decode()
            return "/".join((url, *parts[1:]))
    return None


class FoundAgain:
    """What another process finds by its place and reads itself: nothing read is sent.

    That may be on another machine: of what lies in a store the URL is sent, and the copy
    is made in the cache there.

    Attributes:
        path: Where it is read, here.
    """

    path: Path

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields of a dataclass, with the place in the path's stead."""
        these: Any = self
        held = {one.name: getattr(self, one.name) for one in fields(these)}
        return {**held, "path": url_of(self.path) or self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields; what the store has comes by a refresh."""
        place = state["path"]
        if isinstance(place, str):
            folder, _, name = place.rpartition("/")
            place = copy_of(folder) / name
        vars(self).update(state, path=place)


def _copies() -> Path:
    return cache_folder() / "runs"


def _remote(path: Path) -> RemoteFolder | None:
    url = url_of(path)
    return RemoteFolder(url) if url else None


@contextmanager
def remote_lease(path: Path, near: Lease, patience: float) -> Iterator[Lease]:
    """Hold a run's lease in its store, too, and take what is there.

    ``near`` is the lease on the working copy; in a folder that is none nothing happens.
    """
    remote = _remote(path)
    if remote is None:
        yield near
        return
    far = take_lease(RemoteLeases(remote), patience=patience, beside=near)
    try:
        pull(path)
        yield far
    finally:
        far.end()


def pull(path: Path) -> None:
    """Make a working copy what the store has; nothing else may write in it meanwhile.

    Large files come when they are read: see :func:`fetch`.

    Raises:
        LimitError: A file is larger than a bound; it was not downloaded.
        StorageError: The store, or the cache, cannot be reached.
    """
    remote = _remote(path)
    if remote is None:
        return
    with _alone(path):
        known, there = _state(path), _own(remote.files())
        with storage_errors(path):
            for name, here in _local(path).items():
                if name not in there or _Copied(*_seen(there[name]), here) != known.get(
                    name
                ):
                    (path / name).unlink()
        state = _copied(path, there)
        _save_state(path, state)
        _download(remote, path, state, lambda name: not name.endswith(_LATER))


def fetch(path: Path, name: str) -> None:
    """Download a file of a run, or all in a folder of it, unless they are here.

    A folder's name ends with a slash; nothing happens if the run is no working copy.

    Raises:
        LimitError: A file is larger than a bound; it was not downloaded.
        TranscriptError: A file is larger than the store says.
        StorageError: The store, or the cache, cannot be reached.
    """
    remote = _remote(path)
    if remote is not None:
        is_folder = name.endswith("/")
        with _alone(path):
            _download(
                remote,
                path,
                _state(path),
                lambda one: one.startswith(name) if is_folder else one == name,
            )


def _download(
    remote: RemoteFolder, path: Path, state: _State, wanted: Callable[[str], bool]
) -> None:
    """Download what is wanted and not here, run.json first."""
    copied: _State = {}
    missing = [one for one in state if wanted(one) and not (path / one).exists()]
    for one in sorted(missing, key=lambda name: name != HEADER):
        size = state[one].size
        check_limit(limit_of(one), size, f"{remote.url}/{one}")
        make_folders(path, one)
        write_parts(path / one, remote.read(one, size))
        copied[one] = state[one]._replace(here=_stamp(path / one))
    if copied:
        _save_state(path, {**state, **_state(path), **copied})


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other readers of a working copy from taking its files for outdated ones.

    They wait for a minute: one that stands still stops nobody. Where there are no locks
    of the system, a reader may find a file gone, and reads it when it is run again.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    lock, give_up = path.parent / f".{path.name}.copying", time.monotonic() + _WAITS
    with storage_errors(lock):
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        while time.monotonic() < give_up:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOKS)
            except OSError:  # no locks here
                break
        yield
    finally:
        os.close(handle)


def known_names(path: Path) -> set[str]:
    """Return which files of a run its store had when they were last listed here."""
    return set(_state(path))


def push(path: Path, check: Callable[[], None]) -> None:
    """Upload what changed, run.json last.

    Nothing happens if the run is no working copy. ``check`` raises if it is another's
    by now, and is asked before each file.

    Raises:
        StorageError: The store cannot be written; run.json there is as it was.
    """
    remote = _remote(path)
    if remote is None:
        return
    known = _state(path)
    local = _local(path)
    for name in sorted(local, key=lambda n: (n == HEADER, not n.endswith(_LATER), n)):
        if name not in known or known[name].here != local[name]:
            check()
            remote.upload(name, path / name)
    there = _own(remote.files())
    with _alone(path):
        _save_state(path, _copied(path, there))


def forget(path: Path, names: Callable[[str], bool], check: Callable[[], None]) -> None:
    """Remove files of a run in its store: run.json first, if it is one of them.

    Nothing happens if the run is no working copy. ``check`` is as for :func:`push`.
    """
    remote = _remote(path)
    if remote is None:
        return
    there = [name for name in _own(remote.files()) if names(name)]
    for name in sorted(there, key=lambda name: name != HEADER):
        check()
        remote.remove(name)


def share(path: Path) -> None:
    """Upload a file beside the runs, if it lies in a working copy."""
    remote = _remote(path.parent)
    if remote is not None:
        remote.upload(path.name, path)


def read_shared(path: Path) -> bytes | None:
    """Return a short file beside the runs as the store has it; None if it is no copy."""
    remote = _remote(path.parent)
    return None if remote is None else remote.start_of(path.name, _SHARED)


def _own(files: Mapping[str, RemoteFile]) -> dict[str, RemoteFile]:
    """Return a run's own files: nothing hidden or outside, no pages."""
    return {name: file for name, file in files.items() if _is_own(name)}


def _is_own(name: str) -> bool:
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not (hidden or _NOT.fullmatch(name)) and bool(WRITTEN.fullmatch(name))


def _local(path: Path) -> dict[str, tuple[int, int]]:
    """Return a run's own files here, with size and time of change."""
    found = (p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
    names = {place.relative_to(path).as_posix(): place for place in found}
    return {name: _stamp(place) for name, place in names.items() if _is_own(name)}


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _seen(file: RemoteFile) -> tuple[int, str]:
    return file.size, file.version


def _copied(path: Path, there: Mapping[str, RemoteFile]) -> _State:
    """Return what is in the store, with the copies that are here."""
    local = _local(path)
    return {name: _Copied(*_seen(f), local.get(name)) for name, f in there.items()}


def _state_file(path: Path) -> Path:
    return path.parent / f".{path.name}.copied.json"


def _save_state(path: Path, state: _State) -> None:
    write_json(_state_file(path), state)


def _state(path: Path) -> _State:
    with suppress(PrivauditError, ValueError):
        return _STATES.validate_python(json.loads(read_bytes(_state_file(path))))
    return {}
