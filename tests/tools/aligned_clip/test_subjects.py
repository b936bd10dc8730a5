"""Captions' subjects as classes: who agrees, what is public, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import TRAIN, VALIDATION
from privaudit.datasets.sources import load_dataset
from privaudit_tools.aligned_clip.subjects import parts, write_subjects

CAPTIONS = {
    "dog": ["a dog runs", "the dogs", "a puppy by a man", "a man", "snow"],
    "girl": ["a girl sings", "girls", "the girl and a dog", "children", "a song"],
    "": ["a dog", "a dog", "a man", "a man", "nobody"],
}


def bank(folder: Path, subjects: list[str]) -> Path:
    """Write vectors, one caption each, and all captions of each picture."""
    folder.mkdir()
    drawn = np.random.default_rng(0).standard_normal((len(subjects), 6))
    np.save(folder / "clip_embeddings.npy", drawn.astype(np.float32))
    texts = [
        [f"{caption} {row}" for caption in CAPTIONS[name]]
        for row, name in enumerate(subjects)
    ]
    (folder / "captions.json").write_text(json.dumps([each[0] for each in texts]))
    lines = [
        f"{row}.jpg,{caption}" for row, each in enumerate(texts) for caption in each
    ]
    (folder / "flickr8k_captions_all.txt").write_text(
        "\n".join(["image,caption", *lines])
    )
    return folder


def test_a_class_is_what_most_captions_name_first(tmp_path: Path) -> None:
    found = tmp_path / "subjects.npz"
    rows = ["dog", "girl", "", "dog", "girl"] * 5
    assert write_subjects(bank(tmp_path / "bank", rows), found) == 20
    dataset = load_dataset("feature-bank", found)
    assert dataset.class_names == ("dog", "girl")
    assert dataset.labels.tolist() == [0, 1] * 10
    assert dataset.split is not None
    counts = {part: dataset.split.tolist().count(part) for part in (VALIDATION, TRAIN)}
    assert counts == {VALIDATION: 4, TRAIN: 8}


def test_parts_are_drawn_by_the_seed_alone() -> None:
    labels = np.arange(50) % 2
    assert parts(labels) == parts(labels)
    assert parts(labels) != parts(labels, 1)


def test_captions_that_agree_on_nothing_are_refused(tmp_path: Path) -> None:
    folder = bank(tmp_path / "bank", ["", ""])
    with pytest.raises(ConfigError, match="captions that agree on a subject"):
        write_subjects(folder, tmp_path / "subjects.npz")
    assert not (tmp_path / "subjects.npz").exists()
