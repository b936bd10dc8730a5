"""Files by name, wherever they lie: what folders and archives have in common."""

import lzma
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, Protocol, TypeVar, runtime_checkable
from zipfile import BadZipFile

from privaudit.core.errors import ConfigError, MissingFileError, PrivauditError

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
        ...

    @property
    def names(self) -> list[str]:
        """The wanted files, sorted; hidden ones are left out."""
        ...

    def __contains__(self, name: str) -> bool:
        """Say whether a file is there."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        ...


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
