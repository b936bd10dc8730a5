"""Data and models by name and content, wherever a machine keeps them.

``data://NAME#HASH`` is a file or folder NAME below one of the folders of the search
path, with that content: a configuration that says so means the same on every machine.
Without ``#HASH`` it is what is found first; the hash is added to what a run records.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError, shown
from privaudit.core.limits import check_limit, open_regular, reading_errors
from privaudit.core.storage import kept
from privaudit.datasets.files.archives import counts

SCHEME = "data://"
_NAME = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)*)(?:#([0-9a-f]{64}))?")


def search_path() -> Iterator[Path]:
    """Yield the folders of data sets and models, the first choice first.

    Those of ``$PRIVAUDIT_DATA``, with colons between them (semicolons on Windows), and
    ``~/.cache/privaudit/data``.
    """
    named = os.environ.get("PRIVAUDIT_DATA", "").split(os.pathsep)
    for root in filter(None, (*named, "~/.cache/privaudit/data")):
        with suppress(RuntimeError):  # no home folder
            yield Path(root).expanduser()


def is_named(place: str) -> bool:
    """Say whether a place is a name of the search path."""
    return place.startswith(SCHEME)


def with_hash(place: str) -> str:
    """Return ``data://NAME#HASH`` of what is found as ``data://NAME``."""
    name, _ = _parts(place)
    return f"{SCHEME}{name}#{content_hash_of(located(place))}"


def located(place: str | Path) -> Path:
    """Return where a place is on this machine; a path is what it is."""
    if not is_named(str(place)):
        return Path(place)
    name, expected = _parts(str(place))
    looked = [root / name for root in search_path()]
    there = [path.resolve() for path in looked if path.exists()]
    for path in there:
        if expected is None or content_hash_of(path) == expected:
            return path
    where = " or ".join(map(str, there or looked))
    what = (
        f"{SCHEME}{name}#{(expected or '')[:8]} is not {where}: that has another content"
        if there
        else (f"There is no {place}: nothing is at {where}")
    )
    advice = "Restore it, or train again without the hash" if there else "Put it there"
    raise MissingFileError(
        f"{what}. {advice}, or add its folder to the search path PRIVAUDIT_DATA."
    )


def by_content(place: str) -> str:
    """Return a place as it is the same on all machines: by its content.

    What is no place here, such as a name on a hub, stays as it is.
    """
    with suppress(PrivauditError, OSError):
        if is_named(place):
            return f"#{_parts(with_hash(place))[1]}"
        if (path := Path(place)).is_absolute() and path.exists():
            return f"#{content_hash_of(path)}"
    return place


@lru_cache(maxsize=64)
def content_hash_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of a folder's names and contents.

    Hidden files do not count. It is kept in the cache folder, and made again when a
    size or a time of change differs; another process sees what changes meanwhile.
    """
    sizes = list(_sizes(path))
    state = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    names = [name for name, *_ in sizes]
    return str(kept("hashes", str(path.resolve()), state, lambda: _hash(path, names)))


def _hash(path: Path, names: list[str]) -> str:
    if path.is_file():
        return _file_hash(path)
    lines = "".join(f"{_file_hash(path / name)} {name}\n" for name in names)
    return hashlib.sha256(lines.encode()).hexdigest()


def _file_hash(path: Path) -> str:
    with reading_errors(path), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sizes(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield files by their names in a folder, sorted, with size and time of change."""
    for name in [""] if path.is_file() else sorted(_names(path)):
        with reading_errors(path / name):
            found = (path / name).stat()
        yield name, found.st_size, found.st_mtime_ns


def _names(folder: Path) -> Iterator[str]:
    files = 0
    walk = enumerate(os.walk(folder, followlinks=True), start=1)
    for number, (place, _, found) in walk:
        check_limit("folders", number, str(folder))
        check_limit("entries", files := files + len(found), str(folder))
        names = ((Path(place) / one).relative_to(folder).as_posix() for one in found)
        yield from filter(counts, names)


def _parts(place: str) -> tuple[str, str | None]:
    match = _NAME.fullmatch(place.removeprefix(SCHEME))
    if match is None or not is_named(place):
        raise ConfigError(
            f"{shown(place)} is no name of data or of a model. Write {SCHEME}NAME, or "
            f"{SCHEME}NAME#HASH with a SHA-256, for what lies below a folder of "
            "PRIVAUDIT_DATA."
        )
    return match[1], match[2]
