"""A run's own files in a folder: nothing else is ever removed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from privaudit.core.errors import ConfigError
from privaudit.core.storage import (
    UNFINISHED,
    make_private_folder,
    storage_errors,
    write_bytes,
)
from privaudit.federated.runs.folder.lease import LEASE
from privaudit.federated.runs.folder.outputs import check_above
from privaudit.federated.runs.folder.own_files import (
    BEGUN,
    FOLDERS,
    HEADER,
    WRITTEN,
    refuse_link,
)
from privaudit.federated.runs.folder.run_lock import LOCK
from privaudit.federated.runs.folder.working_copy import forget

_SHOWN = 3  # files that an error names


def check_place(path: Path, *, fresh: bool) -> None:
    """Refuse to train in a folder whose files could be lost, before any is touched.

    ``fresh``: whether what an earlier run wrote there may go.

    Raises:
        ConfigError: It is not empty and no run; the text says what to do.
        StorageError: It cannot be read, or lies in another run.
    """
    check_above(path)
    for folder in (path, *(path / name for name in FOLDERS)):
        refuse_link(folder)
    if fresh or (path / HEADER).exists() or (path / BEGUN).exists():
        return
    foreign, files = _split(path)
    files = [name for name in files if not name.endswith(UNFINISHED)]  # of no content
    if files:
        raise ConfigError(
            f"{path} holds {some_files(files)} and no {HEADER}: a run that lost it. "
            f"Restore {HEADER} from a copy, take another --name, or --fresh to remove "
            "what the run wrote and start over."
        )
    if foreign:
        raise ConfigError(
            f"{path} holds {some_files(foreign)} and no run. Use another --name or "
            "--runs, or --fresh to train there all the same: these files stay."
        )


def clear_run(path: Path, ready: Callable[[], None] = lambda: None) -> None:
    """Remove what a run wrote, and make its folders.

    run.json goes first, so that a kill leaves no mixture; a mark says that the rest may
    go, too. Files that no run writes stay, and so do the folders that they are in.

    ``ready`` raises if the run is another's by now.
    """
    check_place(path, fresh=True)
    forget(path, lambda _: True, ready)
    write_bytes(path / BEGUN, b"", ready)
    with storage_errors(path):
        (path / HEADER).unlink(missing_ok=True)
        for name in _split(path)[1]:
            if name != BEGUN:
                ready()
                (path / name).unlink()
        _remove_empty(path)
    for name in FOLDERS:
        make_private_folder(path / name)


def remove_unfinished(path: Path) -> None:
    """Remove what a killed process was writing, and the mark of a beginning."""
    with storage_errors(path):
        for name in _split(path)[1]:
            if name.endswith(UNFINISHED):
                (path / name).unlink(missing_ok=True)


def foreign_files(path: Path) -> list[str]:
    """Return the files in a run's folder that no run writes, by their path in it."""
    return _split(path)[0]


def _split(path: Path) -> tuple[list[str], list[str]]:
    """Return the files that no run writes, and those that one does."""
    with storage_errors(path):
        names = sorted(_files(path)) if path.exists() else []
    written = [name for name in names if WRITTEN.fullmatch(name)]
    foreign = [n for n in names if n not in {*written, LOCK} and not LEASE.fullmatch(n)]
    return foreign, written


def _files(path: Path) -> Iterator[str]:
    """Yield what is in a folder; links are entries, wherever they lead."""
    for folder, folders, files in os.walk(path, onerror=_raise):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*files, *links]:
            yield (Path(folder) / name).relative_to(path).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _remove_empty(path: Path) -> None:
    """Remove the empty folders of a run, the deepest first."""
    places = [p for name in FOLDERS for p in (path / name, *(path / name).glob("*"))]
    for folder in reversed(places):
        if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def some_files(names: list[str]) -> str:
    """Return the first of some files' names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more files" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
