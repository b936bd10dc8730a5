"""What a test reads and writes of the clone: files of the repository, and those only to read."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.places import ROOT

READS = ("open", "os.listdir", "os.scandir")
WRITES = (
    "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "shutil.copyfile", "shutil.move", "shutil.rmtree",
)  # fmt: skip
TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
INSTALLED = (".venv", ".git", "build", ".twins", "privaudit.egg-info")
"""What stands in a clone and is nobody's work: make puts it there."""

_watched: list[list[str]] = []


@contextmanager
def own_folder_only() -> Iterator[list[str]]:
    """Note what is read or written below the clone that is not the repository's."""
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
    if not _watched or (event not in READS and event not in WRITES):
        return
    for path in arguments[: 2 if event in WRITES else 1]:
        name = _below_the_clone(path)
        if name is not None:
            opens_to_write = event == "open" and bool(arguments[2] & TO_WRITE)
            writes = event in WRITES or opens_to_write
            if not _may(name, writes):
                _watched[-1].append(f"{'writes' if writes else 'reads'} {name}")


def _below_the_clone(path: object) -> str | None:
    if not isinstance(path, str) or not Path(path).absolute().is_relative_to(ROOT):
        return None
    whole = Path(path).resolve()  # trainers/ is linked into privaudit/
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else None


def _may(name: str, writes: bool) -> bool:
    if name.startswith(INSTALLED) or "__pycache__" in name:
        return True
    return not writes and name in _repository()


@cache
def _repository() -> frozenset[str]:
    """Return the files of the repository, new ones too, and their folders."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    files = [os.fsdecode(one) for one in listed.split(b"\0") if one]
    folders = {str(folder) for one in files for folder in Path(one).parents}
    return frozenset(files) | folders
