import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import FeatureBank
from privaudit.datasets.sources import load_dataset
from privaudit_tools.data_sets.caption_bank import read_caption_bank
from tests.places import SHARED
from tests.privaudit.datasets.conftest import assert_refused

CAPTIONS = ["A dog runs .", "Two dogs .", "A red car .", "The car, parked ."]
VECTORS = np.array(
    [[1.0, 0.1, 0.0], [1.0, 0.0, 0.1], [0.0, 1.0, 0.0], [0.0, 0.9, 0.1]], np.float16
)
FLICKR = SHARED / "data/clip_flickr8k_1000"


def write_captions(
    path: Path, vectors: Any = VECTORS, captions: Any = CAPTIONS
) -> Path:
    np.save(path / "vectors.npy", vectors)
    (path / "captions.json").write_text(json.dumps(captions))
    return path


def test_each_vector_has_its_caption_and_a_group(tmp_path: Path) -> None:
    dataset = read_caption_bank(write_captions(tmp_path), clusters=2)
    assert isinstance(dataset.images, FeatureBank)
    assert torch.equal(dataset.images.embeddings, torch.from_numpy(VECTORS).float())
    first, other = dataset.labels[0], dataset.labels[2]
    assert first != other
    assert dataset.labels.tolist() == [first, first, other, other]
    assert dataset.class_names[other].endswith(": car, parked")
    assert [d.answers for d in dataset.dialogues] == [(text,) for text in CAPTIONS]
    assert {d.question for d in dataset.dialogues} == {"Describe the picture."}


def test_vectors_may_lie_in_an_npz_and_equal_ones_make_fewer_groups(
    tmp_path: Path,
) -> None:
    np.savez(tmp_path / "bank.npz", emb=np.repeat(VECTORS[[0, 2]], 2, axis=0))
    (tmp_path / "captions.json").write_text(json.dumps(CAPTIONS))
    dataset = load_dataset("caption-bank", tmp_path)
    assert len(dataset.class_names) == 2


def test_other_captions_of_the_same_picture_are_references(tmp_path: Path) -> None:
    """The second caption is one of two pictures': which is its own, nobody knows."""
    (tmp_path / "flickr8k_captions_all.txt").write_text(
        "image,caption\n1.jpg,A dog runs .\n1.jpg,Dog at play .\n2.jpg,Two dogs .\n"
        '3.jpg,Two dogs .\n4.jpg,"The car, parked ."\n4.jpg,"A car, red ."\n\n'
    )
    dataset = read_caption_bank(write_captions(tmp_path), clusters=2)
    assert [dialogue.answers for dialogue in dataset.dialogues] == [
        ("A dog runs .", "Dog at play ."), ("Two dogs .",), ("A red car .",),
        ("The car, parked .", "A car, red ."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("vectors", "captions", "message"),
    [
        (VECTORS[:3], CAPTIONS, "3 vectors and 4 captions"),
        (VECTORS, [*CAPTIONS[:3], " "], "Caption 3 in .* is blank"),
        (VECTORS, {"1": "a"}, r"captions\.json is not as it should be"),
        (VECTORS, [1, 2], "at 0: Input should be a valid string"),
        (VECTORS[0], CAPTIONS, r"float16 of shape \(3,\)"),
        (VECTORS.astype(int), CAPTIONS, "Store them as floats"),
        (VECTORS * [[1], [0], [1], [1]], CAPTIONS, "Embedding 1 in .* is all zeros"),
        (
            np.where(VECTORS < 1, VECTORS, np.nan),
            CAPTIONS,
            "Embedding 0 in .* not finite",
        ),
        (np.array([{}]), CAPTIONS, "holds Python objects"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(
    vectors: Any, captions: Any, message: str, tmp_path: Path
) -> None:
    path = write_captions(tmp_path, vectors, captions)
    assert_refused("caption-bank", path, message)


def test_damaged_and_missing_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "none"))
    with pytest.raises(MissingFileError, match=r"needs one \.npy with vectors"):
        load_dataset("caption-bank")
    with pytest.raises(MissingFileError, match=r"no \.npy, \.npz or"):
        read_caption_bank(tmp_path)
    (tmp_path / "vectors.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ConfigError, match=r"vectors\.npy cannot be read"):
        read_caption_bank(tmp_path)
    write_captions(tmp_path)
    (tmp_path / "captions.json").unlink()
    with pytest.raises(MissingFileError, match=r"no captions\.json"):
        read_caption_bank(tmp_path)
    write_captions(tmp_path)
    for line, said in (
        ("", r"has the line \['1\.jpg'\]"),
        (',"A dog', "list of commas"),
    ):
        (tmp_path / "flickr8k_captions_all.txt").write_text(
            f"i,c\n1.jpg{line}\n2.jpg,b"
        )
        with pytest.raises(ConfigError, match=said):
            read_caption_bank(tmp_path)
    (tmp_path / "more.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"holds more\.npy, vectors\.npy"):
        read_caption_bank(tmp_path)
    (tmp_path / "more.npy").unlink()
    (tmp_path / "vectors.npy").unlink()
    np.savez(tmp_path / "bank.npz", other=VECTORS)
    with pytest.raises(ConfigError, match="holds other, and no embeddings"):
        read_caption_bank(tmp_path)


def test_real_vectors_have_five_references_but_for_captions_of_several_pictures() -> (
    None
):
    if not FLICKR.is_dir():
        pytest.skip(f"needs reference data, not in the repository: {FLICKR.name}")
    dataset = load_dataset("caption-bank", FLICKR)
    assert isinstance(dataset.images, FeatureBank)
    assert dataset.images.embeddings.shape == (1000, 512)
    assert len(dataset.class_names) == 8
    assert dataset.labels.bincount().min() >= 30
    counts = np.bincount([len(dialogue.answers) for dialogue in dataset.dialogues])
    assert counts[1] == 14
    assert counts[2:].sum() == 986
    assert counts[5] > 980
