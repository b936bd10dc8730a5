"""Data sets that users bring: where they are looked for, and what they need."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from privaudit.core.bounded_files import reason_of
from privaudit.core.errors import ConfigError, DatasetError, MissingFileError, shown
from privaudit.datasets.dataset import DATASETS, Dataset


@dataclass(frozen=True)
class OnDisk:
    """A data set that lies on a disk; calling it reads it.

    Attributes:
        summary: What it is, in one line.
        needs: What has to lie there, without a full stop.
        source: What to do to get it, such as "Download ... from ...".
        read: Makes a data set of the folder or file.
        folders: Further names of its folder, such as those that other programs give it.
    """

    summary: str
    needs: str
    source: str
    read: Callable[[Path], Dataset]
    folders: tuple[str, ...] = ()

    def __call__(self, path: Path) -> Dataset:
        """Read it."""
        return self.read(path)


def load_dataset(name: str, path: str | Path | None = None) -> Dataset:
    """Return a data set by name.

    A second call returns the same object, so what changed on the disk meanwhile is only
    seen by another process.

    Args:
        name: From ``privaudit list datasets``.
        path: Its folder or file; None looks in the usual places.

    Raises:
        UnknownNameError: No data set has that name.
        MissingFileError: It is not there; the text says what to download.
        ConfigError: It cannot be used; the text names the file.
    """
    entry = DATASETS.find(name)
    if not isinstance(entry, OnDisk):
        if path is not None:
            raise ConfigError(
                f"The data set {name!r} is part of the package, and {path} was given "
                "for it. Leave the path out, or name the kind of data that lies there: "
                "`privaudit list datasets`."
            )
        return _load(name, None)
    return _load(name, find_folder(name, entry, path))


@lru_cache(maxsize=4)
def _load(name: str, path: Path | None) -> Dataset:
    entry = DATASETS.find(name)
    if path is None:
        return entry()
    try:
        return entry(path)
    except OSError as error:  # a name that a list holds, and no system takes
        raise DatasetError(
            f"The data set in {path} cannot be used: {shown(str(error.filename))}: "
            f"{reason_of(error)}. Fix the list, or the file."
        ) from None
    except ConfigError as error:
        if str(path) in str(error):
            raise
        raise DatasetError(f"The data set in {path} cannot be used. {error}") from None


def find_folder(name: str, entry: OnDisk, path: str | Path | None = None) -> Path:
    """Return where a data set lies.

    Args:
        name: The data set's.
        entry: What it needs.
        path: Where it is, if that was said.

    Raises:
        MissingFileError: Nothing is there.
    """
    looked = [Path(path)] if path is not None else list(places(name, entry))
    for place in looked:
        if place.exists():
            return place.resolve()
    then = "name its place with --data"
    if path is None:
        then = f"put it into {looked[0]}, or {then}"
    raise MissingFileError(
        f"The data set {name!r} is not in {' or '.join(map(str, looked))}. It needs "
        f"{entry.needs}. {entry.source}, and {then}."
    )


def places(name: str, entry: OnDisk) -> Iterator[Path]:
    """Yield where a data set is looked for, the first choice first.

    That is in ``$PRIVAUDIT_DATA``, if it is set, and in ``~/.cache/privaudit/data``.
    """
    named = os.environ.get("PRIVAUDIT_DATA")
    for root in filter(None, (named, "~/.cache/privaudit/data")):
        with suppress(RuntimeError):  # no home folder
            for folder in (name, *entry.folders):
                yield Path(root).expanduser() / folder


def only_file(path: Path, pattern: str, missing: str) -> Path:
    """Return a file that was named, or the only one in a folder.

    Args:
        path: The file, or the folder.
        pattern: That its name fits in a folder, with ``*``.
        missing: What to say where there is none.

    Raises:
        MissingFileError: There is none.
        DatasetError: There are several.
    """
    if path.is_file():
        return path
    files = sorted(path.glob(pattern))
    if not files:
        raise MissingFileError(missing)
    if len(files) > 1:
        raise DatasetError(
            f"{path} holds {', '.join(file.name for file in files)}. Name one of them."
        )
    return files[0]
