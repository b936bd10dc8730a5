"""Runs in an object store: a folder of it by its URL, and working copies of its runs here.

fsspec knows s3://, gs://, az://, memory:// and others; what speaks to a store is a
package of its own (s3fs, gcsfs, adlfs), which users install.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditError,
    StorageError,
    TranscriptError,
    one_line,
    shown,
)
from privaudit.core.limits import check_limit, limit_of, read_bytes
from privaudit.core.storage import (
    cache_folder,
    make_private_folder,
    storage_errors,
    write_bytes,
    write_json,
    write_parts,
)
from privaudit.runs.lease import (
    MOST_BYTES,
    Lease,
    lease_name,
    lease_numbers,
    take_lease,
)
from privaudit.runs.own_files import HEADER, WRITTEN, make_folders

_URL = re.compile(r"([a-z][a-z0-9+.:-]*)://(.+)")
_SECRET = re.compile(r"[^@]*?://[^@]*:(?!\d+/)[^@]*@.*", re.DOTALL)  # but no port
_LIKE_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # and no drive, as in C:
_LOCAL = ("file", "local")
_READ_ONLY = ("http", "https")
_PART = 1 << 20
_SETTLES = 2.0  # seconds in which two writers' objects are ordered, without conditions
_VERSION = ("ETag", "etag", "generation", "md5Hash", "mtime", "LastModified", "created")


def is_url(place: str | Path) -> bool:
    """Say whether a place is a URL of a store, and no path."""
    match = _URL.fullmatch(str(place))
    return match is not None and match[1] not in _LOCAL


def refuse_secrets(place: str | Path) -> None:
    """Refuse a URL with a password in it, and repeat nothing of it."""
    if _SECRET.fullmatch(str(place)):
        raise ConfigError(
            "The URL of a folder of runs has a password in it (NAME:PASSWORD@), which "
            "errors, reports and the cache would repeat. Leave it out, and give it to "
            "the store's package, such as by AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY or a file of credentials."
        )


def plain_path(place: str | Path) -> Path:
    """Return a path; ``file://`` before it is left out.

    Raises:
        ConfigError: It begins as a URL does, and is none.
    """
    match = _URL.fullmatch(str(place))
    if match and match[1] in _LOCAL:
        return Path(match[2])
    if isinstance(place, str) and (like := _LIKE_URL.match(place)):
        raise ConfigError(
            f"{shown(place)} begins as a URL does, and is none. Write a URL as in "
            f"{like[1].lower()}://bucket/runs; or, for a folder, ./ before its name."
        )
    return Path(place)


def local_path(place: str | Path) -> Path:
    """Return the path of a file or folder that is read or written here, in no store.

    Raises:
        ConfigError: It is a URL of a store.
    """
    if is_url(place):
        raise ConfigError(
            f"{shown(str(place))} lies in a store, and a file or folder of this machine "
            "is taken here. Name one, and copy it from or to the store."
        )
    match = _URL.fullmatch(str(place))
    return Path(match[2] if match else place)


class RemoteFile(NamedTuple):
    """A file of a store as it is listed, and its copy.

    Attributes:
        size: In the store, in bytes.
        version: Changes when the file is written again.
        here: Size and time of change of a copy of that version, if there is one.
    """

    size: int
    version: str
    here: tuple[int, int] | None = None


class RemoteFolder:
    """One folder of a store, such as a run's.

    Raises:
        ConfigError: No installed package speaks to such stores.
        StorageError: The store cannot be reached, read or written, in any method.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._store, self._root = _opened(self.url)

    def files(self) -> dict[str, RemoteFile]:
        """Return what lies in it, at any depth, by name; nothing where nothing is.

        Raises:
            LimitError: There are more files than a bound.
        """
        with self._errors(""):
            self._store.invalidate_cache()
            found = self._store.find(self._root, detail=True)
        check_limit("entries", len(found), self.url)
        names = {path.removeprefix(self._root).lstrip("/"): path for path in found}
        return {
            name: RemoteFile(int(about["size"] or 0), _version(about))
            for name, path in names.items()
            if (about := found[path])["type"] == "file"
        }

    def names(self) -> list[str]:
        """Return what lies in it directly."""
        with self._errors(""):
            self._store.invalidate_cache()
            try:
                paths = self._store.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def read(self, name: str, size: int) -> Iterator[bytes]:
        """Yield a file's content in parts.

        Raises:
            MissingFileError: It is gone.
            TranscriptError: It is larger than it was listed.
        """
        with self._errors(name):
            try:
                file = self._store.open(self._path(name), "rb")
            except FileNotFoundError:
                raise MissingFileError(f"There is no {name} in {self.url}.") from None
            with file:
                while part := file.read(min(_PART, size + 1)):
                    size -= len(part)
                    if size < 0:
                        raise TranscriptError(
                            f"{self.url}/{name} is larger than the store says: it is "
                            "being written. Run the same command again."
                        )
                    yield part

    def upload(self, name: str, path: Path) -> None:
        """Write a file, as a whole."""
        with self._errors(name):
            self._store.put_file(str(path), self._path(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a short file."""
        with self._errors(name):
            self._store.pipe_file(self._path(name), content)

    def make(self, name: str, content: bytes) -> bool:
        """Make a short file that is not there; say whether this one was first.

        Where a store has no conditional writes, the last of several writers is.
        """
        with self._errors(name):
            path = self._path(name)
            try:
                self._store.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError, ValueError):
                if self._store.exists(path):
                    return False
                self._store.pipe_file(path, content)
                time.sleep(_SETTLES)
            return self.start_of(name) == content

    def start_of(self, name: str, most: int = MOST_BYTES) -> bytes:
        """Return the beginning of a file; nothing where it is gone."""
        with self._errors(name):
            try:
                content = self._store.cat_file(self._path(name), start=0, end=most)
            except FileNotFoundError:
                return b""
        return bytes(content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with self._errors(name), suppress(FileNotFoundError):
            self._store.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turn what a store's package raises into one line: each has its own errors."""
        try:
            yield
        except PrivauditError:
            raise
        except Exception as error:
            raise StorageError(
                f"{self.url}/{name} cannot be read or written "
                f"({type(error).__name__}: {one_line(str(error))}). What was uploaded "
                "before is whole: see that the store can be reached, and go on with "
                "--resume."
            ) from error


def _opened(url: str) -> tuple[Any, str]:
    """Return a file system and the folder in it, which lists what is there now."""
    import fsspec

    check_scheme(url)
    try:
        store, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ValueError as error:
        raise _no_place(url, str(error)) from None
    return store, str(root).rstrip("/")


def check_scheme(url: str) -> None:
    """Refuse a URL of what runs cannot lie in, without asking the store.

    Raises:
        ConfigError: Its scheme is unknown or read-only, or lacks a package.
    """
    import fsspec

    scheme = url.partition("://")[0]
    if "::" in url:
        raise ConfigError(
            f"{shown(url)} chains several stores. Name one, such as s3://bucket/runs."
        )
    if scheme in _READ_ONLY:
        raise _no_place(url, f"{scheme}:// can only be read")
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(
            f"{shown(url)} needs a package beside privaudit that is not installed: "
            f"{error}."
        ) from None
    except ValueError as error:
        raise _no_place(url, str(error)) from None


def _no_place(url: str, why: str) -> ConfigError:
    return ConfigError(
        f"{shown(url)} is no place for runs: {why}. Name a folder, or a URL such as "
        "s3://bucket/runs."
    )


def _version(about: dict[str, Any]) -> str:
    return " ".join(str(about[key]) for key in _VERSION if key in about)


class RemoteLeases:
    """Leases as objects in a run's folder of a store.

    What was written over is not distinguishable from one's own there, so the last one
    stays for ever and says that it has ended: a number is never made twice.
    """

    pause = 1.0

    def __init__(self, folder: RemoteFolder) -> None:
        self.where, self._folder = folder.url, folder

    def newest(self) -> tuple[int, bytes]:
        """Return the highest number and its content; 0 where there is none."""
        number = max(self._numbers(), default=0)
        return number, self._folder.start_of(lease_name(number)) if number else b""

    def make(self, number: int, content: bytes) -> bool:
        """Make an object that is not there; say whether it was so."""
        return self._folder.make(lease_name(number), content)

    def renew(self, number: int, content: bytes) -> None:
        """Write an object of one's own again."""
        self._folder.write(lease_name(number), content)

    def end(self, number: int, content: bytes) -> None:
        """Leave a lease that says that it has ended."""
        self.renew(number, content)

    def drop_before(self, number: int) -> None:
        """Remove the objects with lower numbers."""
        for one in self._numbers():
            if one < number:
                self._folder.remove(lease_name(one))

    def _numbers(self) -> list[int]:
        return lease_numbers(self._folder.names())


_ADDRESS = ".url"  # the file of a working copy that says of what
_WAITS, _LOOKS = 60.0, 0.02  # seconds for another reader, and between two looks
_LATER = ".safetensors"  # files of this ending come when they are read
_SHARED = 1 << 20  # bytes of a file beside the runs that are read
_NOT = re.compile(r"audits/signals/.*|.*\.html")  # is made of the rest, here


_State = dict[str, RemoteFile]
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
    with suppress(ValueError):  # elsewhere, of all copies, or where no cache can be
        copy, *below = path.resolve().relative_to(_copies().resolve()).parts
        with suppress(MissingFileError):
            url = read_bytes(_copies() / copy / _ADDRESS).decode()
            return "/".join((url, *below))
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
                is_there = name in there
                if not is_there or there[name]._replace(here=here) != known.get(name):
                    (path / name).unlink()
        state = _copied(path, there)
        write_json(_state_file(path), state)
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
        write_json(_state_file(path), {**state, **_state(path), **copied})


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
        write_json(_state_file(path), _copied(path, there))


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


def _own(files: _State) -> _State:
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


def _copied(path: Path, there: _State) -> _State:
    """Return what is in the store, with the copies that are here."""
    local = _local(path)
    return {name: f._replace(here=local.get(name)) for name, f in there.items()}


def _state_file(path: Path) -> Path:
    return path.parent / f".{path.name}.copied.json"


def _state(path: Path) -> _State:
    with suppress(PrivauditError, ValueError):
        return _STATES.validate_python(json.loads(read_bytes(_state_file(path))))
    return {}
