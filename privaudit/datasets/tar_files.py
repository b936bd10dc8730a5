"""The files of .tar archives, compressed or not."""

import io
import tarfile
from bz2 import BZ2File
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from gzip import GzipFile
from lzma import LZMAFile
from pathlib import Path

from privaudit.datasets.store import Wanted, counts, missing, plain, unreadable
from privaudit.errors import ConfigError

COMPRESSED: Mapping[str, Callable[[Path], io.BufferedIOBase]] = {
    ".tar.gz": GzipFile,
    ".tgz": GzipFile,
    ".tar.xz": LZMAFile,
    ".tar.bz2": BZ2File,
}
LARGEST = 4 * 2**30  # bytes that a compressed archive may take in memory


@dataclass(frozen=True)
class TarStore:
    """The files of a .tar that is not compressed.

    Attributes:
        path: The archive.
        places: Where each file starts, and its size, in bytes.
    """

    path: Path
    places: Mapping[str, tuple[int, int]]

    @property
    def names(self) -> list[str]:
        """The wanted files, sorted."""
        return sorted(self.places)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        if name not in self.places:
            raise missing(self.path, name)
        start, size = self.places[name]
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                content = file.read(size)
        except OSError as error:
            raise unreadable(self.path, name, error) from None
        if len(content) < size:
            raise unreadable(self.path, name, EOFError("the archive was cut"))
        return content


@dataclass(frozen=True)
class MemoryStore:
    """The files of a compressed .tar, in memory."""

    path: Path
    contents: Mapping[str, bytes]

    @property
    def names(self) -> list[str]:
        """The wanted files, sorted."""
        return sorted(self.contents)

    def __contains__(self, name: str) -> bool:
        return name in self.contents

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        if name not in self.contents:
            raise missing(self.path, name)
        return self.contents[name]


def open_tar(path: Path, wanted: Wanted) -> TarStore | MemoryStore:
    """Return the wanted files of an archive, by its ending.

    Raises:
        ConfigError: It is compressed, and too large for memory.
    """
    for ending, opener in COMPRESSED.items():
        if path.name.lower().endswith(ending):
            return MemoryStore(path, _load(path, opener, wanted))
    return TarStore(path, _index(path, wanted))


def _index(path: Path, wanted: Wanted) -> dict[str, tuple[int, int]]:
    with tarfile.open(path, "r:") as archive:
        return {
            name: (member.offset_data, member.size)
            for name, member in _members(archive, wanted)
        }


def _load(
    path: Path, opener: Callable[[Path], io.BufferedIOBase], wanted: Wanted
) -> dict[str, bytes]:
    with opener(path) as stream:
        contents = _load_stream(path, stream, wanted)
        while stream.read(2**20):  # the end tells whether all came before it
            pass
    return contents


def _load_stream(
    path: Path, stream: io.BufferedIOBase, wanted: Wanted
) -> dict[str, bytes]:
    contents, size = {}, 0
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for name, member in _members(archive, wanted):
            size += member.size
            if size > LARGEST:
                raise ConfigError(
                    f"{path} holds more than {LARGEST >> 30} GiB, which would all have "
                    "to be in memory. Extract it and name the folder, or make a .tar "
                    "of it that is not compressed."
                )
            file = archive.extractfile(member)
            contents[name] = file.read() if file else b""
    return contents


def _members(
    archive: tarfile.TarFile, wanted: Wanted
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    for member in archive:
        name = plain(member.name)
        if member.isreg() and not member.issparse() and counts(name) and wanted(name):
            yield name, member
