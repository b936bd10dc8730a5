"""The files of .tar archives, compressed or not."""

import io
import itertools
import os
import tarfile
import zlib
from bz2 import BZ2File
from collections.abc import Callable, Iterator, Mapping
from lzma import LZMAFile
from pathlib import Path

from typing_extensions import Buffer

from privaudit.core.bounded_files import open_regular
from privaudit.core.limits import check_limit
from privaudit.datasets.store import ArchiveStore, Wanted, counts, plain

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
