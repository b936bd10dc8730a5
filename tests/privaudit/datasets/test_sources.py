import sys
from pathlib import Path
from typing import Any

import pytest

from privaudit.cli.list import names_of
from privaudit.core.errors import ConfigError, MissingFileError, UnknownNameError
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.sources import OnDisk, load_dataset, places
from tests.privaudit.datasets.conftest import tree, write_folder

FILES = sorted(
    name for name in DATASETS.names() if isinstance(DATASETS.find(name), OnDisk)
)


def test_the_environment_comes_before_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "here"))
    entry = DATASETS.find("pacs")
    assert isinstance(entry, OnDisk)
    home = tmp_path / "home" / ".cache" / "privaudit" / "data"
    here = tmp_path / "here"
    assert list(places("pacs", entry)) == [
        here / "pacs", here / "PACS", home / "pacs", home / "PACS",
    ]  # fmt: skip
    write_folder(home / "image-folder", tree("at", "home"))
    assert load_dataset("image-folder").class_names == ("at", "home")
    write_folder(here / "image-folder", tree("in", "here"))
    assert load_dataset("image-folder").class_names == ("here", "in")
    named = write_folder(tmp_path / "named", tree("said", "so"))
    assert load_dataset("image-folder", named).class_names == ("said", "so")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_data_set_is_one_line_that_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIVAUDIT_DATA", raising=False)
    with pytest.raises(MissingFileError) as caught:
        load_dataset(name)
    text = str(caught.value)
    assert f"put it into {tmp_path}/.cache/privaudit/data/{name}, or" in text
    assert "\n" not in text
    assert ".." not in text
    with pytest.raises(MissingFileError, match=r"gone.*, and name its place with"):
        load_dataset(name, tmp_path / "gone")


@pytest.mark.parametrize("name", DATASETS.names())
def test_a_data_set_is_found_by_importing_its_own_module(name: str) -> None:
    (module,) = DATASETS._modules_of(name)
    assert module in sys.modules
    entry: Any = DATASETS.find(name)
    reader = getattr(entry, "read", entry)
    assert getattr(reader, "func", reader).__module__.startswith(module)


@pytest.mark.parametrize("name", FILES)
def test_an_empty_folder_is_one_clear_line(name: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, MissingFileError), match=str(tmp_path)):
        load_dataset(name, tmp_path)


def test_a_path_for_what_comes_with_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'digits' is part of the package"):
        load_dataset("digits", tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'digits'"):
        load_dataset("digit")


def test_the_list_says_what_is_needed_where_and_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "caltech-101").mkdir(parents=True)
    found = {name: lines for name, *lines in names_of("datasets")}
    assert len(found["digits"]) == 1
    assert found["caltech101"][3] == f"found: {tmp_path / 'data' / 'caltech-101'}"
    summary, needs, looked, there = found["eurosat"]
    assert summary.startswith("EuroSAT")
    assert "split_zhou_EuroSAT.json" in needs
    assert str(tmp_path / "data" / "eurosat") in looked
    assert there.startswith("not there. Download the images from https://")
