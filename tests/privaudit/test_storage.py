import os
from pathlib import Path

import pytest
import torch

from privaudit.errors import MissingFileError, StorageError, TranscriptError
from privaudit.storage import (
    make_private_folder,
    read_json,
    read_tensors,
    write_bytes,
    write_json,
    write_tensors,
)


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
