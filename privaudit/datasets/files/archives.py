"""Stores: files by name in a folder or an archive; nothing is ever extracted to the disk."""

import io
import itertools
import lzma
import os
import tarfile
import zlib
from abc import ABC, abstractmethod
from bz2 import BZ2File
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from lzma import LZMAFile
from pathlib import Path, PurePosixPath
from typing import Generic, Protocol, TypeVar, runtime_checkable
from zipfile import BadZipFile, ZipInfo

from typing_extensions import Buffer

from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    MissingFileError,
    PrivauditError,
)
from privaudit.core.limits import check_limit, open_regular, open_zip, read_bounded

PICTURES = (
    ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff",
)  # fmt: skip
DAMAGE = (  # what a damaged archive makes the standard library raise
    OSError, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError,
    tarfile.TarError, BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip

Wanted = Callable[[str], bool]
Entry = TypeVar("Entry")


@runtime_checkable
class Store(Protocol):
    """Files by their names, which are relative and separated by slashes."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def names(self) -> list[str]:
        """The wanted files, sorted; hidden ones are left out."""

    def __contains__(self, name: str) -> bool:
        """Say whether a file is there."""

    def read(self, name: str) -> bytes:
        """Return a file's content."""


class ArchiveStore(ABC, Generic[Entry]):
    """The wanted files of an archive, by entries from which a file can be read."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        self.path, self._entries = path, entries

    @property
    def names(self) -> list[str]:
        """The wanted files, sorted."""
        return sorted(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        if name not in self._entries:
            raise missing(self.path, name)
        try:
            return self.content(name, self._entries[name])
        except PrivauditError:
            raise
        except DAMAGE as error:
            raise unreadable(self.path, name, error) from None

    @abstractmethod
    def content(self, name: str, entry: Entry) -> bytes:
        """Return a file's content; raise one of ``DAMAGE`` where it is damaged."""


def is_picture(name: str) -> bool:
    """Say whether a name ends as pictures do."""
    return name.lower().endswith(PICTURES)


def plain(name: str) -> str:
    """Return a name as folders would give it."""
    return name.removeprefix("./")


def counts(name: str) -> bool:
    """Say whether a name stays below its folder, with nothing hidden on the way."""
    parts = name.split("/")
    return not any(part.startswith(".") or part in ("", "__MACOSX") for part in parts)


def missing(path: Path, name: str) -> MissingFileError:
    """Return the error for a file that is not there."""
    return MissingFileError(
        f"There is no {name} in {path}. Put it there, or take it out of the split."
    )


def unreadable(path: Path, name: str, error: Exception) -> ConfigError:
    """Return the error for a file that is there, and damaged or closed."""
    return ConfigError(
        f"{name} in {path} cannot be read ({error or type(error).__name__}). Fix the "
        "file, or take it out."
    )


Opener = Callable[[io.BufferedReader], io.BufferedIOBase]
_CHUNK = 2**20  # bytes read at a time
_LONG = (  # entries that tarfile reads as a whole: names and further fields
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE,
    tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip


class _Readable(io.RawIOBase):
    def readable(self) -> bool:
        """Say that it can be read."""
        return True


class _GzipPieces(_Readable):
    """What a .gz holds, one or several members of it.

    Python's own reader passes padding behind a member byte by byte: two gigabytes of
    zeros take it minutes.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self._pieces, self._piece = _gunzip(file), memoryview(b"")

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer with the next bytes."""
        while not self._piece:
            try:
                self._piece = memoryview(next(self._pieces))
            except StopIteration:
                return 0
        view = memoryview(buffer)
        count = min(len(view), len(self._piece))
        view[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count


def _gunzip(file: io.BufferedReader) -> Iterator[bytes]:
    member: zlib._Decompress | None = None
    packed = b""
    while packed := packed or file.read(_CHUNK):
        if member is None:
            packed = packed.lstrip(b"\0")  # padding
            member = zlib.decompressobj(wbits=31) if packed else None
            continue
        yield member.decompress(packed, _CHUNK)
        packed = member.unconsumed_tail
        if member.eof:
            packed, member = member.unused_data, None
    if member is not None:
        raise EOFError("the archive was cut")


COMPRESSED: Mapping[str, Opener] = {
    ".tar.gz": lambda file: io.BufferedReader(_GzipPieces(file)),
    ".tgz": lambda file: io.BufferedReader(_GzipPieces(file)),
    ".tar.xz": LZMAFile,
    ".tar.bz2": BZ2File,
}


class TarStore(ArchiveStore[tuple[int, int]]):
    """The files of a .tar that is not compressed, by start and size in bytes."""

    def content(self, name: str, entry: tuple[int, int]) -> bytes:
        """Return a file's content, from where it lies."""
        start, size = entry
        check_limit("file", size, f"{name} in {self.path}")
        with open_regular(self.path) as file:
            file.seek(start)
            content = file.read(size)
        if len(content) < size:
            raise EOFError("the archive was cut")
        return content


class MemoryStore(ArchiveStore[bytes]):
    """The files of a compressed .tar, in memory."""

    def content(self, name: str, entry: bytes) -> bytes:
        """Return a file's content."""
        return entry


def open_tar(path: Path, wanted: Wanted) -> TarStore | MemoryStore:
    """Return the wanted files of an archive, by its ending."""
    for ending, opener in COMPRESSED.items():
        if path.name.lower().endswith(ending):
            return MemoryStore(path, _load(path, opener, wanted))
    return TarStore(path, _index(path, wanted))


def _index(path: Path, wanted: Wanted) -> dict[str, tuple[int, int]]:
    with (
        open_regular(path) as file,
        tarfile.open(fileobj=file, mode="r:", tarinfo=_Entry) as archive,
    ):
        spans = {
            name: (member.offset_data, member.size)
            for name, member in _members(path, archive, wanted)
        }
        file.seek(-tarfile.BLOCKSIZE, io.SEEK_END)
        if any(file.read(tarfile.BLOCKSIZE)):  # an archive ends in blocks of zeros
            raise tarfile.ReadError("its end is missing: it was cut")
        return spans


def _load(path: Path, opener: Opener, wanted: Wanted) -> dict[str, bytes]:
    with open_regular(path) as file, opener(file) as unpacked:
        check_limit("unpacked", os.fstat(file.fileno()).st_size, str(path))
        stream = _Counted(path, unpacked)
        contents = _load_stream(path, stream, wanted)
        while stream.read(_CHUNK):  # the end tells whether all came before it
            pass
    return contents


def _load_stream(path: Path, stream: "_Counted", wanted: Wanted) -> dict[str, bytes]:
    contents, size = {}, 0
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as archive:
        for name, member in _members(path, archive, wanted):
            size += member.size
            check_limit("archive", size, f"What is wanted of {path}")
            file = archive.extractfile(member)
            contents[name] = file.read() if file else b""
    return contents


class _Counted(_Readable):
    """What is unpacked, up to a bound: a few bytes may become very many."""

    def __init__(self, path: Path, stream: io.BufferedIOBase) -> None:
        self._path, self._stream, self._size = path, stream, 0

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill a buffer with the next bytes."""
        count = self._stream.readinto(buffer)
        self._size += count
        check_limit("unpacked", self._size, str(self._path))
        return count


class _Entry(tarfile.TarInfo):
    """An entry whose own fields take no more than a line may."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Entry":
        """Return what a block says of an entry.

        Raises:
            LimitError: It announces longer names than a line may have.
            ReadError: It has a negative size, which would lead tarfile in circles, or
                is sparse.
        """
        entry = super().frombuf(buf, encoding, errors)
        if entry.size < 0 or entry.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("an entry is sparse, or has a negative size")
        if entry.type in _LONG:
            check_limit("line", entry.size, "An entry of the archive")
        return entry

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("an entry is sparse")


def _members(
    path: Path, archive: tarfile.TarFile, wanted: Wanted
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    for count in itertools.count(1):
        member = archive.next()
        if member is None:
            return
        check_limit("entries", count, str(path))
        archive.members.clear()  # type: ignore[attr-defined]  # it would keep all
        if member.size < 0:
            raise tarfile.ReadError("an entry has a negative size")
        name = plain(member.name)
        if member.isreg() and not member.issparse() and counts(name) and wanted(name):
            yield name, member


ARCHIVES = (".tar", *COMPRESSED, ".zip")


def is_archive(path: Path) -> bool:
    """Say whether a file's name ends as archives do."""
    return path.name.lower().endswith(ARCHIVES) and path.is_file()


def open_store(path: Path, wanted: Wanted = is_picture) -> Store:
    """Return the files of a folder or an archive.

    A .tar and a .zip are read file by file. A compressed .tar can only be read from its
    start, so its wanted files are held in memory.
    """
    if path.is_dir():
        return FolderStore(path, wanted)
    if not path.exists():
        raise MissingFileError(f"There is no {path}. Name a folder or an archive.")
    if not is_archive(path):
        raise DatasetError(
            f"{path} is neither a folder nor an archive. Name a folder, or a file that "
            f"ends in {', '.join(ARCHIVES)}."
        )
    is_zip = path.name.lower().endswith(".zip")
    try:
        return ZipStore(path, wanted) if is_zip else open_tar(path, wanted)
    except PrivauditError:
        raise
    except DAMAGE as error:
        raise DatasetError(
            f"{path} cannot be read as an archive ({error or type(error).__name__}). "
            "Download it again, or extract it and name the folder."
        ) from None


@dataclass(frozen=True)
class FolderStore:
    """The files below a folder; links are followed."""

    path: Path
    wanted: Wanted = is_picture

    @cached_property
    def names(self) -> list[str]:
        """The wanted files, sorted."""
        entries = []
        for folder, _, files in _walk(self.path):
            inside = PurePosixPath(Path(folder).relative_to(self.path).as_posix())
            entries += [str(inside / n) for n in files if counts(n) and self.wanted(n)]
            check_limit("entries", len(entries), str(self.path))
        return sorted(entries)

    def empty_folders(self) -> list[str]:
        """Return the folders without folders and without wanted files, sorted."""
        used = {str(PurePosixPath(name).parent) for name in self.names}
        bare = (Path(folder) for folder, below, _ in _walk(self.path) if not below)
        return sorted({f.relative_to(self.path).as_posix() for f in bare} - used)

    def __contains__(self, name: str) -> bool:
        return counts(name) and (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        try:
            return read_bounded(self.path / name, "file")
        except FileNotFoundError:
            raise missing(self.path, name) from None
        except OSError as error:
            raise unreadable(self.path, name, error) from None


class ZipStore(ArchiveStore[ZipInfo]):
    """The files of a .zip, which is held open."""

    def __init__(self, path: Path, wanted: Wanted = is_picture) -> None:
        self._zip = open_zip(open_regular(path), str(path))
        found = {
            plain(entry.filename): entry
            for entry in self._zip.infolist()
            if not entry.is_dir() and counts(plain(entry.filename))
            and wanted(entry.filename)
        }  # fmt: skip
        super().__init__(path, found)

    def content(self, name: str, entry: ZipInfo) -> bytes:
        """Return a file's content."""
        check_limit("file", entry.file_size, f"{name} in {self.path}")
        return self._zip.read(entry)


def _walk(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder with what is in it, hidden folders left out.

    Links are followed, but not to a folder that holds them, and not without end.
    """
    for count, entry in enumerate(os.walk(path, onerror=_refuse, followlinks=True)):
        folder, folders, _ = entry
        check_limit("folders", count, str(path))
        above = set(map(os.path.realpath, (Path(folder), *Path(folder).parents)))
        folders[:] = sorted(name for name in folders if counts(name))
        for name in folders:
            link = Path(folder) / name
            if link.is_symlink() and os.path.realpath(link) in above:
                raise DatasetError(
                    f"The link {link} leads to a folder that holds it. Remove it."
                )
        yield entry


def _refuse(error: OSError) -> None:
    """Stop where a folder cannot be read; walk would leave it out in silence."""
    raise DatasetError(
        f"{error.filename} cannot be read ({error.strerror}). Make it a folder that "
        "you may read, or take it out."
    )
