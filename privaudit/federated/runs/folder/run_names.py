"""The names of runs, where they lie, and how they are loaded."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from privaudit.core.bounded_files import reason_of
from privaudit.core.errors import ConfigError, MissingFileError, TranscriptError, shown
from privaudit.core.registry import Registry
from privaudit.core.storage import read_bytes, write_bytes
from privaudit.federated.runs.folder.names import (
    LATEST,
    among_runs,
    is_name,
    latest_names,
)
from privaudit.federated.runs.folder.own_files import HEADER
from privaudit.federated.runs.folder.remote_store import (
    RemoteFolder,
    check_scheme,
    is_url,
    plain_path,
    refuse_secrets,
)
from privaudit.federated.runs.folder.run_lock import refresh
from privaudit.federated.runs.folder.working_copy import (
    copy_of,
    read_shared,
    share,
    url_of,
)
from privaudit.federated.runs.runs import Run


def runs_folder(folder: str | Path | None = None) -> Path:
    """Return where runs are kept: an argument, PRIVAUDIT_RUNS, or ./runs.

    Of a URL it is the folder in the cache in which its runs are worked on.

    Raises:
        ConfigError: It is a URL of what runs cannot lie in, or has a password.
    """
    place = folder or os.environ.get("PRIVAUDIT_RUNS") or "runs"
    refuse_secrets(place)
    return copy_of(str(place)) if is_url(place) else plain_path(place)


def shared_place(folder: Path) -> str | Path:
    """Return a folder of runs as another machine finds it: its URL, or else the path."""
    return url_of(folder) or folder


def latest_places(folder: str | Path | None = None) -> list[Path]:
    """Return where the runs lie that the last ``train`` command made.

    Raises:
        MissingFileError: Nothing was trained yet.
        TranscriptError: What remembers it was altered.
    """
    marker = runs_folder(folder) / LATEST
    names = []
    shared = read_shared(marker)
    if shared is not None or marker.exists():
        content = read_bytes(marker) if shared is None else shared
        names = latest_names(content)
    if not names:
        raise MissingFileError(
            f"There is no run in {shared_place(marker.parent)}. Train one with "
            "`privaudit train`, or name a run."
        )
    for name in names:
        if not is_name(name):
            raise TranscriptError(
                f"{shared_place(marker)} names {name!r}, which is no run: it was "
                "altered. Remove it, and name the run."
            )
    found = [marker.parent.resolve() / name for name in names]
    for place in found:
        refresh(place)
    return found


def places_in(folder: str | Path | None = None) -> list[Path]:
    """Return where the runs lie that a folder of runs has, as its store has them."""
    place = runs_folder(folder)
    url = url_of(place)
    if url is None:
        return sorted(header.parent for header in place.glob(f"*/{HEADER}"))
    found = [place / name for name in RemoteFolder(url).names() if is_name(name)]
    for one in found:
        refresh(one)
    return sorted(one for one in found if (one / HEADER).exists())


def find_place(name: str | Path, folder: str | Path | None = None) -> Path:
    """Return where a run or a folder lies: among the runs by name, else as a path.

    Raises:
        ConfigError: It has no name, one that no system takes, or the URL of what is
            no place for runs, or with a password.
    """
    refuse_secrets(name)
    if not str(name) or "\0" in str(name):
        raise ConfigError(
            f"{str(name)!r} is not the name of a run. Give a name or a folder, or "
            "leave it out for the latest run."
        )
    if is_url(name):
        url = str(name).rstrip("/")
        folder, _, name = url.rpartition("/")
        if not is_url(folder):
            check_scheme(url)
            raise ConfigError(
                f"{shown(url)} is a whole store, and a run lies in a folder of one. "
                f"Name the run as in {url}/runs/NAME."
            )
    path = plain_path(name)
    inside = runs_folder(folder) / path
    if is_name(str(name)) and url_of(inside) is not None:
        refresh(inside)
        return inside
    try:
        return among_runs(str(name), path, runs_folder(folder))
    except OSError as error:
        raise MissingFileError(
            f"There is no run {shown(str(name))}: {reason_of(error)}. Name another."
        ) from None


RUN_ORIGINS: Registry[Callable[[Path], Run]] = Registry(
    "origin of a run", "privaudit.recording.origins"
)
"""By the origin that a header names: runs that `privaudit train` did not make."""


def load_run(run: str | Path | None = None, *, folder: str | Path | None = None) -> Run:
    """Load a run from disk, and verify its signature.

    Args:
        run: Name of a run in ``folder``, or a path; by default the latest run.
        folder: Folder of all runs; by default ``./runs``.

    Raises:
        MissingFileError: There is no such run.
        UnknownNameError: Another version, or another program, made it.
    """
    if run is None:
        return latest_runs(folder)[-1]
    loaded = Run(find_place(run, folder))
    origin = loaded.origin
    return RUN_ORIGINS.find(origin)(loaded.path) if origin else loaded


def chosen_runs(
    names: Sequence[str] | None, folder: str | Path | None = None
) -> list[Run]:
    """Return the runs of those names, or else the latest."""
    return [load_run(one, folder=folder) for one in names or []] or latest_runs(folder)


def latest_runs(folder: str | Path | None = None) -> list[Run]:
    """Return what the last ``train`` command made, in its order.

    Raises:
        MissingFileError: Nothing was trained yet.
        TranscriptError: What remembers it was altered.
    """
    return [load_run(place) for place in latest_places(folder)]


def mark_latest(runs: Sequence[Run]) -> None:
    """Remember which runs a command without a RUN is about."""
    names = "".join(f"{run.name}\n" for run in runs)
    marker = runs[0].path.parent / LATEST
    write_bytes(marker, names.encode())
    share(marker)
