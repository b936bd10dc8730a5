"""The names of a run's own files, and the writer of others, which lie in no run.

Whatever a user names is written in one place: never in a run, and through no link.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from privaudit.core.errors import ConfigError, StorageError
from privaudit.core.signing import keys_folder
from privaudit.core.storage import (
    UNFINISHED,
    make_private_folder,
    storage_errors,
    write_bytes,
)

HEADER = "run.json"
BEGUN = f".run{UNFINISHED}"  # there while a run's first files are written
PLAN = "plan.json"  # of audits, put there before training
SESSION = "session.json"  # with an auditor, who tosses half of the coin
CANARIES = "canaries.json"  # what they are, and whose: to be looked at
FOLDERS = ("transcript", "kept", "audits")
_NAME = r"[^/]+"
WRITTEN = re.compile(
    "|".join(
        (
            r"run\.json|plan\.json|session\.json|privacy\.json|metrics\.jsonl|trace\.jsonl|ledger\.npz|canaries\.json|card\.key|bundle\.json",
            r"transcript/(manifest\.jsonl|round-\d{4,}\.safetensors)",
            r"kept/(after-\d{4,}|personal|server)\.safetensors",
            r"kept/(mask|run|session)\.key",
            rf"audits/{_NAME}/(audit\.json|scores\.npz|report\.html)",
            r"audits/log\.jsonl",
            r"audits/signals/[0-9a-f]{24}\.safetensors",
            rf"audits/(shift-{_NAME}\.(json|md)|(table|benchmark)/{_NAME}\.json|index\.html)",
            rf"(({'|'.join(FOLDERS)})/({_NAME}/)?)?\.{_NAME}{re.escape(UNFINISHED)}",
        )
    )
)


def make_folders(path: Path, name: str) -> None:
    """Make the folders that a run's file lies in, private, and never through a link.

    Raises:
        ConfigError: The name leads out of the run, or a folder is a link.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConfigError(
            f"A file {name} was to be written into the run {path}, and leads out of it. "
            "Give a path within the run."
        )
    for folder in reversed((path / name).relative_to(path).parents[:-1]):
        refuse_link(path / folder)
        make_private_folder(path / folder)


def refuse_link(folder: Path) -> None:
    """Raise ConfigError if a run's folder leads elsewhere."""
    if folder.is_symlink():
        raise ConfigError(
            f"{folder} is a link, and a run's files are written into its own folder "
            "only. Put a folder in its place, or use another --name."
        )


_MANIFEST, _BUNDLE = "transcript/manifest.jsonl", "bundle.json"
_KEPT = (".npz", ".npy", ".safetensors", ".key")  # data, which no report replaces


def write_output(path: Path, content: bytes, *, is_data: bool = False) -> None:
    """Replace a file that a user named, or make it.

    Only ``is_data`` may take the place of data, such as a ledger of a ledger.

    Raises:
        StorageError: It is no place for an output, or it cannot be written.
    """
    check_file(path)
    if path.suffix in _KEPT and path.exists() and not is_data:
        raise _refused(
            path, "holds data, and a report would replace it", "another file"
        )
    write_bytes(path, content)


def check_file(path: Path) -> None:
    """Refuse a file that is no place for an output; one that is there may be replaced.

    Raises:
        StorageError: It lies in a run or beside the keys, is a link, has other names, or
            is a folder, a device or a pipe; or its folder is not there.
    """
    _check_place(path)
    if path.is_symlink():
        raise _refused(path, "is a link", "the file that it leads to, or another one")
    if not path.parent.is_dir():
        raise StorageError(
            f"{path} was to be written, and there is no folder {path.parent}. Create it "
            "first, or name another file."
        )
    if not path.exists():
        return
    if not path.is_file():
        raise _refused(path, "is a folder, a device or a pipe", "a file")
    if path.stat().st_nlink > 1:
        fault = "is a file of several names (hard links)"
        raise _refused(path, fault, "a new one, or remove this name of it first")


def check_folder(path: Path) -> Path:
    """Refuse a folder that is no place for outputs, and return it otherwise.

    Raises:
        StorageError: It is a run or lies in one, or is no folder.
    """
    _check_place(path)
    if os.path.lexists(path) and not path.is_dir():
        raise _refused(path, "is no folder", "a folder")
    return path


def make_parent(path: Path) -> None:
    """Make the folder that an output lies in."""
    with storage_errors(check_folder(path.parent)):
        path.parent.mkdir(parents=True, exist_ok=True)


def check_above(path: Path) -> None:
    """Refuse a run within another.

    Raises:
        StorageError: One of the folders that it lies in is a run.
    """
    if run := run_around(Path(os.path.realpath(path)).parent):
        raise _refused(path, f"lies in the run {run}", "a folder outside of it")


def run_around(path: Path) -> Path | None:
    """Return the run that a path is, or lies in; links are followed."""
    real = Path(os.path.realpath(path))
    return next((place for place in (real, *real.parents) if _is_run(place)), None)


def _check_place(path: Path) -> None:
    if run := run_around(path):
        fault = f"lies in the run {run}, whose files are its own"
        raise _refused(path, fault, "a place outside of it")
    with suppress(ConfigError):  # no keys, if the system names no home for this user
        real, keys = (Path(os.path.realpath(one)) for one in (path, keys_folder()))
        if real.is_relative_to(keys):
            fault = "lies in the folder of this machine's keys, accounts and notes"
            raise _refused(path, fault, "another place")


def _is_run(place: Path) -> bool:
    """Whether a folder is a run, also an unfinished, a recorded or a damaged one."""
    if _has_one(place, BEGUN, _MANIFEST):
        return True
    return _has_one(place, HEADER, _BUNDLE) and _has_one(place, *FOLDERS)


def _has_one(place: Path, *names: str) -> bool:
    return any(os.path.exists(place / name) for name in names)  # noqa: PTH110  # no error


def _refused(path: Path, fault: str, instead: str) -> StorageError:
    return StorageError(
        f"{path} was to be written, and it {fault}. Nothing was touched: name {instead}."
    )
