import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import (
    MissingFileError,
    RunInUseError,
    StorageError,
    TranscriptError,
)
from privaudit.core.storage import (
    make_private_folder,
    read_bytes,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)
from privaudit.runs.run_folder import lock_run


def test_a_failed_write_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_bytes(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_a_path_through_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="a part of the path is a file"):
        make_private_folder(tmp_path / "file" / "run")


def test_folders_are_the_owners_alone(tmp_path: Path) -> None:
    folder = make_private_folder(tmp_path / "runs" / "one")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_json_and_tensors_survive(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, 2.5, None]})
    assert read_json(tmp_path / "a.json") == {"x": [1, 2.5, None]}
    write_tensors(tmp_path / "t", {"y": torch.arange(3)})
    assert read_tensors(tmp_path / "t")["y"].tolist() == [0, 1, 2]


def test_what_is_missing_or_cut_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no a\.json"):
        read_json(tmp_path / "a.json")
    with pytest.raises(MissingFileError, match="no t in"):
        read_tensors(tmp_path / "t")
    (tmp_path / "a.json").write_text('{"x": ')
    with pytest.raises(TranscriptError, match="not whole JSON"):
        read_json(tmp_path / "a.json")
    (tmp_path / "t").write_bytes(b"12")
    with pytest.raises(TranscriptError, match="cannot be read"):
        read_tensors(tmp_path / "t")


@pytest.mark.parametrize("read", [read_bytes, read_json, read_tensors])
def test_a_folder_in_a_files_place_is_one_clear_line(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(MissingFileError, match="cannot be read: it is a folder"):
        read(tmp_path)


@pytest.mark.parametrize("read", [read_bytes, read_json, read_tensors])
def test_a_file_that_may_not_be_read_is_one_clear_line(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MissingFileError, match=r"x cannot be read: permission"):
        read(tmp_path / "x")


@pytest.mark.parametrize("content", [b"[]", b"3", b"\xff{}", b"[" * 99999])
def test_only_a_json_object_is_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(TranscriptError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")
def test_a_lock_is_held_once_and_given_back(tmp_path: Path) -> None:
    with (
        lock_run(tmp_path),
        pytest.raises(RunInUseError, match="Another process is training"),
        lock_run(tmp_path),
    ):
        pass
    with lock_run(tmp_path):
        pass
