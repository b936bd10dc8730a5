"""Bounds on foreign files, and the reading of files within them; TOML.

Files come from other people: runs, baselines, cards, plans, data sets and weights. What
they may cost is bounded before they are read, so that none takes more than about 2 GiB
of memory. Where a file is right and larger, the environment raises a bound.

Everywhere: a file that is not there, not readable or no plain one is a MissingFileError,
of :func:`open_regular`, :func:`read_bounded` and :func:`bounded_lines` an OSError; what is
larger than its bound, or nested deeper, is a LimitError.
"""

import errno
import io
import itertools
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from privaudit.core.errors import ConfigError, LimitError, MissingFileError

MIB = 2**20


@dataclass(frozen=True)
class Limit:
    """One bound.

    Attributes:
        most: How many ``unit`` are read without being asked for more.
        unit: What is counted, in the plural: "records".
        reason: Why not more, behind "since".
    """

    most: int
    unit: str
    reason: str


LIMITS: Mapping[str, Limit] = {
    "text": Limit(64 * MIB, "bytes", "JSON takes up to 25 times its size in memory"),
    "lines": Limit(256 * MIB, "bytes", "each line becomes an object in memory"),
    "list": Limit(
        512 * MIB, "bytes", "that is more than the largest list of COCO, of 448 MB"
    ),
    "json_memory": Limit(1536 * MIB, "bytes of memory", "it is parsed as a whole"),
    "line": Limit(16 * MIB, "bytes in one line", "a line is held as a whole"),
    "records": Limit(5_000_000, "records", "each takes some 300 bytes of memory"),
    "classes": Limit(
        2_000, "classes", "the text of each takes up to 0.6 MiB of memory"
    ),
    "baseline": Limit(
        2_000_000, "numbers", "a classifier is fitted to them some forty times"
    ),
    "tensors": Limit(768 * MIB, "bytes", "they are held in memory twice"),
    "arrays": Limit(768 * MIB, "bytes", "they are held in memory twice"),
    "file": Limit(256 * MIB, "bytes", "no picture and no part of CIFAR is so large"),
    "entries": Limit(2_000_000, "entries", "each takes some 500 bytes of memory"),
    "toml": Limit(2 * MIB, "bytes", "it is read a character at a time"),
    "depth": Limit(50, "levels", "no plan nests its tables so deeply"),
    "folders": Limit(200_000, "folders", "links may make endlessly many of a few"),
    "directory": Limit(
        128 * MIB, "bytes", "each entry is ten times as large in memory"
    ),
    "archive": Limit(
        768 * MIB,
        "bytes",
        "a compressed .tar is held in memory, and others and folders are not",
    ),
    "unpacked": Limit(2048 * MIB, "bytes", "a compressed .tar is unpacked every time"),
    "pixels": Limit(50_000_000, "pixels", "each takes some 30 bytes on its way"),
    "proportion": Limit(
        100, "times its shorter side", "resizing the shorter side would blow it up"
    ),
}
"""By name; ``PRIVAUDIT_MAX_`` and the name in capitals raises one."""


def most(name: str) -> int:
    """Return a bound, as the environment says or by default.

    Raises:
        ConfigError: The environment says something else than a whole number.
    """
    variable = variable_of(name)
    said = os.environ.get(variable)
    if said is None:
        return LIMITS[name].most
    if not (said.isascii() and said.isdigit() and len(said) < 20):
        raise ConfigError(
            f"{variable} is {said[:40]!r}, and takes a whole number of "
            f"{LIMITS[name].unit}. Set one such as {LIMITS[name].most}, or unset it."
        )
    return int(said)


def variable_of(name: str) -> str:
    """Return the environment's variable that raises a bound."""
    return f"PRIVAUDIT_MAX_{name.upper()}"


def limit_of(name: str) -> str:
    """Return which bound a file of a run has, by the ending of its name."""
    endings = {".npz": "arrays", ".safetensors": "tensors", ".jsonl": "lines"}
    return endings.get(name[name.rfind(".") :], "text")


def check_limit(name: str, found: int, what: str) -> None:
    """Refuse, by a LimitError, what has or declares more than a bound allows.

    ``what`` is its name, in words.
    """
    allowed, limit = most(name), LIMITS[name]
    if found > allowed:
        raise LimitError(
            f"{what} has {found:,} {limit.unit}, and at most {allowed:,} are read, "
            f"since {limit.reason}. If that is right, set {variable_of(name)}={found}."
        )


def check_json(content: bytes, what: str, *, numbers: bool = True) -> None:
    """Refuse, by a LimitError, JSON that would take too much memory as Python's objects.

    Counts the signs that make objects, at what Python needs for each: 240 bytes for an
    object, 120 for a list, 50 for a text and 40 for a number. Signs inside of texts
    count as well, so that the estimate is never too small by much.

    Numbers cost nothing where a form names no lists of them, as they are not kept then.
    """
    costs = {b"{": 240, b"[": 120, b'"': 25, b",": 40 if numbers else 0}
    cost = len(content) + sum(content.count(sign) * costs[sign] for sign in costs)
    check_limit("json_memory", cost, what)


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
        folder = path.parent if path.parent.name else path.parent.absolute()  # not "."
        raise MissingFileError(f"There is no {path.name} in {folder}.") from None
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


_QUOTED = re.compile(
    rb'''#[^\n]*+|"""(?:[^"\\]++|\\.|"{1,2}+(?!"))*+"{0,5}+|"(?:[^"\\\n]++|\\.)*+"?'''
    rb"""|'{3}(?:[^']++|'{1,2}+(?!'))*+'{0,5}+|'[^'\n]*+'?""",
    re.DOTALL,
)
"""A comment or a text of TOML. One that does not end is taken, too: else each of its
quotes would be looked at to the end of the file."""


def _dots(content: bytes) -> Iterator[int]:
    """Yield how many dots stand in what may be a key: between commas, signs, brackets."""
    for run in re.finditer(rb"[\w. \t-]+", _QUOTED.sub(b"_", content)):
        yield run[0].count(b".")


def _depths(found: Any) -> Iterator[int]:
    """Yield how deep each value lies, without recursion."""
    todo = [(found, 0)]
    while todo:
        value, depth = todo.pop()
        yield depth
        below = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            todo += [(one, depth + 1) for one in below]
