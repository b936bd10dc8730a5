"""What a test reads and writes of the clone: files of the repository, and those only to read."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.places import ROOT

LISTS = ("os.listdir", "os.scandir")
WRITES = (
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod",
    "shutil.rmtree",
)  # fmt: skip
HEARD = frozenset({"open", *LISTS, *WRITES})  # of all events, which are many
TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
INSTALLED = (".venv", ".git", "build", ".twins")
PASSING = re.compile(r"__pycache__|\.egg-info\b|^__editable__\.")
"""What stands in a clone and is nobody's work: make and Python put it there."""

_BELOW = f"{ROOT}/"
_watched: list[list[str]] = []


@contextmanager
def own_folder_only() -> Iterator[list[str]]:
    """Note what is read or written below the clone that is not the repository's."""
    if (ROOT / ".git").exists():  # else nobody says what the repository's files are
        _listen()
    strays: list[str] = []
    _watched.append(strays)
    try:
        yield strays
    finally:
        _watched.remove(strays)


@cache
def _listen() -> None:
    sys.addaudithook(_hear)  # for good: a process cannot take one back


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in HEARD or not _watched:
        return
    for path in arguments[: 2 if event in WRITES else 1]:
        name = _below_the_clone(path)
        if name is None or name.startswith(INSTALLED) or PASSING.search(name):
            continue
        opens_to_write = event == "open" and bool(arguments[2] & TO_WRITE)
        if event in WRITES or opens_to_write:
            _watched[-1].append(f"writes {name}")
        elif name not in _repository() and not (event in LISTS and _is_inside(name)):
            _watched[-1].append(f"reads {name}")


def _below_the_clone(path: object) -> str | None:
    if not isinstance(path, str):
        return None
    if not f"{os.path.abspath(path)}/".startswith(_BELOW):  # noqa: PTH100  # often asked
        return None
    whole = Path(path).resolve()  # trainers/ is linked into privaudit/
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else None


def _is_inside(name: str) -> bool:
    """Return whether a folder is in one of the repository's: a walk passes what is left."""
    return name.partition(os.sep)[0] in _repository()


@cache
def _repository() -> frozenset[str]:
    """Return the files of the repository, new ones too, and their folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    files = [os.fsdecode(one) for one in listed.split(b"\0") if one]
    folders = {str(folder) for one in files for folder in Path(one).parents}
    return frozenset(files) | folders
