"""Files of a folder or an archive; nothing is ever extracted to the disk."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from zipfile import ZipInfo

from privaudit.core.bounded_files import open_regular, open_zip, read_bounded
from privaudit.core.errors import DatasetError, MissingFileError, PrivauditError
from privaudit.core.limits import check_limit
from privaudit.datasets.files.tar_files import COMPRESSED, open_tar
from privaudit.datasets.store import (
    DAMAGE,
    ArchiveStore,
    Store,
    Wanted,
    counts,
    is_picture,
    missing,
    plain,
    unreadable,
)

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
