"""Data and models by name and content: the same on every machine."""

import os
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets import named_places
from privaudit.datasets.named_places import (
    by_content,
    content_hash_of,
    located,
    search_path,
    with_hash,
)
from privaudit.datasets.sources import load_dataset
from privaudit.models.registry import load_frozen
from privaudit.runs.config import make_config


def two_files(folder: Path, second: str = "two") -> Path:
    (folder / "below").mkdir(parents=True)
    (folder / "one.txt").write_text("one")
    (folder / "below" / "two.txt").write_text(second)
    return folder


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two folders of data, in the search path of this machine."""
    first, second = tmp_path / "a", tmp_path / "b"
    monkeypatch.setenv("PRIVAUDIT_DATA", f"{first}{os.pathsep}{second}")
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path / "cache"))
    content_hash_of.cache_clear()
    return first, second


def test_a_name_is_found_in_the_first_folder_that_has_its_content(
    nodes: tuple[Path, Path],
) -> None:
    first, second = nodes
    two_files(second / "pets")
    named = with_hash("data://pets")
    assert located(named) == second / "pets"
    two_files(first / "pets", "another")
    assert located("data://pets") == first / "pets"
    assert located(named) == second / "pets"
    assert list(search_path())[:2] == [first, second]


def test_two_machines_have_one_digest_whichever_way_the_place_is_given(
    nodes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = nodes
    two_files(first / "pets")
    two_files(second / "deeper" / "dogs")
    plain = make_config("promptfl", dataset="image-folder", data=first / "pets")
    named = make_config("promptfl", dataset="image-folder", data="data://pets")
    other: dict[str, Any] = {"dataset": "image-folder"}
    other["data"] = second / "deeper" / "dogs"
    assert named.data == with_hash("data://pets")
    assert plain.data == str(first / "pets")
    there = make_config("promptfl", **other)
    assert plain.short_hash == named.short_hash == there.short_hash
    (second / "deeper" / "dogs" / "one.txt").write_text("changed")
    content_hash_of.cache_clear()
    assert make_config("promptfl", **other).short_hash != plain.short_hash


def test_models_and_checkpoints_are_named_by_content_too(
    nodes: tuple[Path, Path],
) -> None:
    first, second = nodes
    two_files(first / "bert")
    two_files(second / "models" / "bert")
    by_name = make_config("fedpt", model="encoder:data://bert")
    assert by_name.model == f"encoder:{with_hash('data://bert')}"
    by_path = make_config("fedpt", model=f"encoder:{second / 'models' / 'bert'}")
    assert by_path.short_hash == by_name.short_hash
    named = "data://bert/one.txt"
    config = make_config("promptfl", model="open_clip:ViT-B-32", checkpoint=named)
    assert config.checkpoint == with_hash(named)
    with pytest.raises(ConfigError, match=str(first / "bert")):
        load_frozen(by_name.model)  # found there, and no model


def test_what_is_found_nowhere_or_has_another_content_says_where_it_was_looked_for(
    nodes: tuple[Path, Path],
) -> None:
    first, second = nodes
    with pytest.raises(MissingFileError, match=f"nothing is at {first}.*{second}"):
        load_dataset("image-folder", "data://pets")
    two_files(first / "pets")
    wrong = "data://pets#" + "0" * 64
    with pytest.raises(MissingFileError, match=r"that has another content.*PRIVAUDIT"):
        load_dataset("image-folder", wrong)
    assert by_content(wrong) == wrong
    assert by_content("owner/name") == "owner/name"


@pytest.mark.parametrize(
    "name",
    ["", "../pets", "/etc/passwd", "pets/../../x", ".ssh", "pets#12", "a//b", "a/"],
)
def test_no_name_leads_out_of_the_search_path(
    name: str, nodes: tuple[Path, Path]
) -> None:
    two_files(nodes[0].parent / "pets")
    nodes[0].mkdir()
    with pytest.raises(ConfigError, match="is no name of data"):
        located(f"data://{name}")


def test_a_hash_is_kept_until_a_file_changes_and_hidden_files_do_not_count(
    nodes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_files(nodes[0] / "pets")
    found = content_hash_of(folder)
    (folder / ".DS_Store").touch()
    content_hash_of.cache_clear()
    with monkeypatch.context() as patch:
        patch.delattr(named_places, "_file_hash")  # nothing is read again
        assert content_hash_of(folder) == found
    (folder / "one.txt").write_text("One")
    content_hash_of.cache_clear()
    assert content_hash_of(folder) != found
