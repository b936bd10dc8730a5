"""Opening files that other people made: plain ones only, within bounds; and TOML.

Everywhere: a file that is not there, not readable or no plain one is a MissingFileError,
of :func:`open_regular`, :func:`read_bounded` and :func:`bounded_lines` an OSError; what is
larger than its bound, or nested deeper, is a LimitError.
"""

import errno
import io
import itertools
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.core.limits import check_limit, most

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.EISDIR: "it is a folder",
    errno.ELOOP: "its links lead in a circle",
    errno.ENAMETOOLONG: "its name is too long",
}
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading, if it is a plain one.

    A pipe is opened without waiting for somebody who writes, and refused like devices,
    which may have no end.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # a NUL in its name
        raise OSError(errno.EINVAL, f"that is no name ({error})") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "no file")
        raise OSError(errno.EBADF, f"it is {kind}, and not a plain file")
    return os.fdopen(handle, "rb")


def read_bounded(path: Path, limit: str) -> bytes:
    """Return the content of a plain file that is within a bound of that name.

    What is appended meanwhile is left unread.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        check_limit(limit, size, str(path))
        return file.read(size)


def bounded_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a plain file, which may be of any size; lines may not."""
    longest = most("line")
    with open_regular(path) as file:
        for number in itertools.count(1):
            line = file.readline(longest + 1)
            if not line:
                return
            check_limit("line", len(line), f"{path}, line {number},")
            yield line


def read_bytes(path: Path, limit: str = "text") -> bytes:
    """Read a plain file that is within a bound, as :func:`read_bounded` does."""
    with reading_errors(path):
        return read_bounded(path, limit)


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file that is within bounds, as each and their number are."""
    content = read_bytes(path, "lines")
    ends = content.count(b"\n") + content.count(b"\r") - content.count(b"\r\n")
    unended = bool(content) and content[-1:] not in b"\r\n"
    check_limit("records", ends + unended, f"What {path} lists")
    lines = content.splitlines()
    check_limit("line", max(map(len, lines), default=0), str(path))
    return lines


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turn what keeps a file from being read into one clear line."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(f"There is no {path.name} in {path.parent}.") from None
    except OSError as error:
        raise MissingFileError(
            f"{path} cannot be read: {reason_of(error)}. Make it a file that you may "
            "read, or name another."
        ) from None


def reason_of(error: OSError) -> str:
    """Return why the system refuses, in words."""
    return REASONS.get(error.errno or 0, error.strerror or str(error))


class _BoundedReads:
    """A file of which zipfile reads the list of entries, in one piece, if it may.

    zipfile makes an object of each entry, which takes ten times as much.
    """

    def __init__(self, file: io.BufferedIOBase, what: str) -> None:
        self._file, self._what, self.is_open = file, what, False

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes."""
        if not self.is_open:
            check_limit("directory", size, f"The list of entries in {self._what}")
        return self._file.read(size)

    def __del__(self) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def open_zip(file: io.BufferedIOBase, what: str) -> ZipFile:
    """Open a zip, if its list of entries is within the bounds.

    Raises:
        BadZipFile: It is no zip; also the other errors that zipfile has for damage.
    """
    bounded = _BoundedReads(file, what)
    archive = ZipFile(bounded)
    check_limit("entries", len(archive.infolist()), what)
    bounded.is_open = True
    return archive


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds; as :func:`parse_toml` does."""
    return parse_toml(read_bytes(path, "toml"), str(path))


def parse_toml(content: bytes, what: str) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        ConfigError: It is no TOML.
    """
    check_limit("toml", len(content), what)
    # A dotted key of n parts takes the parser's memory n times n.
    check_limit("depth", max(_dots(content), default=0), what)
    try:
        parsed = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # TOML's own, or no text at all
        reason = str(error).partition("\n")[0][:200]
        raise ConfigError(f"{what} is no TOML: {reason}.") from None
    check_limit("depth", max(_depths(parsed)), what)
    return parsed


def _dots(content: bytes) -> Iterator[int]:
    """Yield how many dots stand in what may be a key: in a header or before a sign."""
    for line in content.splitlines():
        line = line.strip()
        if not line.startswith(b"#"):
            *keys, value = line.split(b"=")
            yield from (key.count(b".") for key in keys)
            yield value.count(b".") if line.startswith(b"[") else 0


def _depths(found: Any) -> Iterator[int]:
    """Yield how deep each value lies, without recursion."""
    todo = [(found, 0)]
    while todo:
        value, depth = todo.pop()
        yield depth
        below = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            todo += [(one, depth + 1) for one in below]
