"""Arguments that are none are refused before anything is loaded, in one line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit import Auditor
from privaudit.core.bounded_files import read_toml
from privaudit.core.errors import ConfigError, TranscriptError, one_line
from privaudit.federated.runs.config import make_config
from privaudit.federated.runs.folder.names import check_name
from privaudit.federated.runs.folder.run_files import split_names
from privaudit.federated.runs.folder.run_names import find_place


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": -1}, {"seed": True}, {"seed": 10**30},
        {"clients": 0}, {"clients": 10**24}, {"shadows": 4},
        {"shadows": -1}, {"shadows": True}, {"scenario": "no"},
    ],
)  # fmt: skip
def test_an_audit_refuses_them_before_data_are_loaded(fields: dict[str, Any]) -> None:
    without_a_run = object.__new__(Auditor)  # whoever asks for data fails otherwise
    with pytest.raises(ConfigError):
        without_a_run.attack(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"clients": True}, {"clients": 10**9}, {"clients": int("9" * 24)},
        {"rounds": True}, {"seed": 10**30}, {"alpha": True}, {"data": "a\0b"},
        {"data": "~nobody-of-that-name/x"}, {"data": ""}, {"model": "vit:\0"},
        {"context_tokens": 10**9},
    ],
)  # fmt: skip
def test_a_configuration_refuses_them(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_config("promptfl", **fields)


def test_parameters_are_no_truths_and_no_numbers_without_end() -> None:
    for settings in ({"epsilon": True}, {"rank": True}, {"rank": int("9" * 24)}):
        with pytest.raises(ConfigError):
            make_config("dp-fpl", settings)


@pytest.mark.parametrize("name", ["", "x" * 201, "x" * 5000, ".", "a\nb"])
def test_a_name_has_a_length(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_name(name)
    assert len(str(caught.value)) < 500


def test_a_folder_is_a_run_by_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_place(".", tmp_path / "runs") == Path()
    with pytest.raises(ConfigError, match="is not the name of a run"):
        find_place("", tmp_path / "runs")


def test_an_error_is_one_line_whatever_names_hold() -> None:
    assert one_line("a\n  b\x1b[2J") == "a b\\x1b[2J"
    assert len(one_line("x" * 5000)) < 1200


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 3000 + "]" * 3000, "a." * 200 + "b = 1", "\0", "=" * 9]
)
def test_a_plan_of_brackets_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.toml"):
        read_toml(tmp_path / "x.toml")


def test_a_tensor_of_nobody_is_damage() -> None:
    with pytest.raises(
        TranscriptError, match="'server' of a run's states has no client"
    ):
        split_names({"server": torch.ones(1)})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="of Linux")
def test_output_that_arrives_nowhere_is_said_and_no_success() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "privaudit", "key", "show"]
        done = subprocess.run(command, stdout=full, stderr=-1, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "The output cannot be written: the disk is full" in done.stderr


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "privaudit", "gate", "--baseline", "--é…"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("privaudit: ")
    assert done.stderr.count("\n") == 1
