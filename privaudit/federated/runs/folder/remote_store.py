"""A folder of an object store, by its URL: what runs need of it, by fsspec.

fsspec knows s3://, gs://, az://, memory:// and others; what speaks to a store is a
package of its own (s3fs, gcsfs, adlfs), which users install.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privaudit.core.errors import (
    ConfigError,
    MissingFileError,
    PrivauditError,
    StorageError,
    TranscriptError,
    one_line,
    shown,
)
from privaudit.core.limits import check_limit
from privaudit.federated.runs.folder.lease import MOST_BYTES, lease_name, lease_numbers

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
    """Refuse a URL with a password in it, and repeat nothing of it.

    Raises:
        ConfigError: It has one.
    """
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


@dataclass(frozen=True)
class RemoteFile:
    """A file of a store as it is listed.

    Attributes:
        size: In bytes.
        version: Changes when the file is written again.
    """

    size: int
    version: str


class RemoteFolder:
    """One folder of a store, such as a run's.

    Raises:
        ConfigError: No installed package speaks to such stores.
        StorageError: The store cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._store, self._root = _opened(self.url)

    def files(self) -> dict[str, RemoteFile]:
        """Return what lies in it, at any depth, by name; nothing where nothing is.

        Raises:
            LimitError: There are more files than a bound.
            StorageError: The store cannot be read.
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
            StorageError: The store cannot be read.
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
        """Write a file, as a whole.

        Raises:
            StorageError: The store cannot be written.
        """
        with self._errors(name):
            self._store.put_file(str(path), self._path(name))

    def write(self, name: str, content: bytes) -> None:
        """Write a short file.

        Raises:
            StorageError: The store cannot be written.
        """
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
