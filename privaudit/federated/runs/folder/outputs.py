"""The one writer of files that a user names: never in a run, and through no link."""

import os
from pathlib import Path

from privaudit.core.errors import ConfigError, StorageError
from privaudit.core.signing import keys_folder
from privaudit.core.storage import storage_errors, write_bytes
from privaudit.federated.runs.folder.own_files import BEGUN, FOLDERS, HEADER

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
    """Make the folder that an output lies in.

    Raises:
        StorageError: That is no place for outputs, or it cannot be made.
    """
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
    keys = _keys()
    if keys is not None and keys in (
        real := Path(os.path.realpath(path)),
        *real.parents,
    ):
        fault = "lies in the folder of this machine's keys, accounts and notes"
        raise _refused(path, fault, "another place")


def _keys() -> Path | None:
    """Return where the keys lie: nowhere, if the system names no home for this user."""
    try:
        return Path(os.path.realpath(keys_folder()))
    except ConfigError:
        return None


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
