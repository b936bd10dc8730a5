from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION, FeatureBank
from privaudit.datasets.images.feature_bank import read_feature_bank
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import assert_refused, parts_of

NAMES = np.array(["cat", "stop_sign"])
LABELS = np.array([0, 1, 1, 0])
FLOATS = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def write(path: Path, **arrays: Any) -> Path:
    base = {"embeddings": FLOATS, "labels": LABELS, "class_names": NAMES}
    kept = {k: v for k, v in {**base, **arrays}.items() if v is not None}
    np.savez(path / "bank.npz", **kept)
    return path / "bank.npz"


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_are_taken_as_they_are(kind: type, tmp_path: Path) -> None:
    dataset = read_feature_bank(write(tmp_path, embeddings=FLOATS.astype(kind)))
    assert isinstance(dataset.images, FeatureBank)
    assert torch.equal(dataset.images.embeddings, torch.from_numpy(FLOATS))
    assert dataset.class_names == ("cat", "stop sign")
    assert dataset.labels.tolist() == LABELS.tolist()
    assert (dataset.split, dataset.domains) == (None, None)


def test_bytes_are_multiplied_by_the_scale_and_other_names_do_too(
    tmp_path: Path,
) -> None:
    """The folder is enough where it holds one bank."""
    path = write(
        tmp_path, embeddings=None, labels=None, class_names=None,
        emb=FLOATS.astype(np.uint8), scale=np.float64(0.5), label=LABELS.astype("i1"),
        classnames=NAMES, split=np.array(["train", "val", "test", "train"]),
        domain=np.array([0, 0, 1, 1], dtype="i1"), domains=np.array(["art_work", "b"]),
        fname=np.array(["1", "2", "3", "4"]),
    )  # fmt: skip
    dataset = load_dataset("feature-bank", path.parent)
    assert isinstance(dataset.images, FeatureBank)
    assert torch.equal(dataset.images.embeddings, torch.from_numpy(FLOATS / 2))
    assert parts_of(dataset) == [TRAIN, VALIDATION, TEST_SPLIT, TRAIN]
    assert dataset.domain_names == ("art work", "b")
    assert dataset.domains is not None
    assert dataset.domains.tolist() == [0, 0, 1, 1]


def test_domains_may_name_themselves(tmp_path: Path) -> None:
    path = write(tmp_path, domains=np.array(["b", "a", "b", "b"]), split=LABELS)
    dataset = read_feature_bank(path)
    assert dataset.domain_names == ("a", "b")
    assert dataset.domains is not None
    assert dataset.domains.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": None}, "and no labels"),
        ({"labels": LABELS[:3]}, "4 records and 3 numbers of their label"),
        ({"labels": LABELS + 1}, "numbers go from 1 to 2, and there are 2 names"),
        ({"labels": LABELS - 1}, "numbers go from -1 to 0"),
        ({"domains": NAMES}, "4 labels, and domains for 2"),
        ({"labels": LABELS.astype(float)}, "labels in .* are float64"),
        ({"labels": LABELS * 0}, r"Class 1 \('stop sign'\) has no record"),
        ({"class_names": np.array(["cat", " "])}, "The name of class 1 is blank"),
        ({"embeddings": FLOATS.astype(np.uint8)}, "there is no scale"),
        ({"embeddings": FLOATS[0]}, r"of shape \(3,\)"),
        ({"embeddings": FLOATS.astype(int)}, "are int64.* Store them as floats"),
        ({"embeddings": FLOATS * np.nan}, "Embedding 0 in .* is all zeros or not"),
        ({"embeddings": FLOATS * (LABELS == 0)[:, None]}, "Embedding 1 in .* zeros"),
        ({"split": np.array(["a", "b", "c", "d"])}, "is of the split 'a'"),
        ({"split": LABELS[:2]}, "4 labels, and split for 2"),
        ({"split": LABELS + 5}, "split numbers go from 5 to 6"),
        ({"domains": LABELS}, "does not name them"),
        ({"domains": LABELS, "domain_names": NAMES[:1]}, "domain numbers go from 0"),
        ({"template": np.array("no place")}, "has no place for a class name"),
        ({"labels": np.array([None] * 4)}, "holds Python objects"),
        ({"scale": np.array([1.0, 2.0])}, r"scale in .* of shape \(2,\)"),
        ({"scale": np.array("big")}, "scale in .* Store one number"),
        ({"scale": -1.0}, r"scale in .* is -1\. Store one above 0"),
        ({"template": np.array(["{}", "a {}"])}, "holds 2 templates"),
    ],
)
def test_banks_that_do_not_go_together_are_one_clear_line(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, **arrays)
    assert_refused("feature-bank", path, message)


def test_a_folder_of_arrays_is_mapped_and_not_read(tmp_path: Path) -> None:
    """What is written into the file afterwards is seen."""
    np.save(tmp_path / "embeddings.npy", FLOATS)
    save_file({"labels": torch.from_numpy(LABELS)}, tmp_path / "numbers.safetensors")
    (tmp_path / "class_names.json").write_text('["cat", "stop_sign"]')
    dataset = load_dataset("feature-bank", tmp_path)
    assert dataset.hash == read_feature_bank(write(tmp_path)).hash
    (tmp_path / "bank.npz").unlink()
    assert isinstance(dataset.images, FeatureBank)
    assert torch.equal(dataset.images.embeddings, torch.from_numpy(FLOATS))
    with (tmp_path / "embeddings.npy").open("r+b") as file:
        file.seek(-4, 2)
        file.write(np.float32(77).tobytes())
    assert dataset.images.embeddings[-1, -1] == 77
    vectors = {"embeddings": dataset.images.embeddings.clone()}
    save_file(vectors, tmp_path / "vectors.safetensors")
    with pytest.raises(ConfigError, match=r"holds embeddings twice, also in vectors"):
        read_feature_bank(tmp_path)
    (tmp_path / "embeddings.npy").unlink()
    again = read_feature_bank(tmp_path / "vectors.safetensors")
    assert isinstance(again.images, FeatureBank)
    assert torch.equal(again.images.embeddings, dataset.images.embeddings)


def test_what_a_mapped_array_declares_is_checked_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "labels.npy", LABELS)
    (tmp_path / "class_names.json").write_text('["cat", "dog"]')
    place = tmp_path / "embeddings.npy"
    for damaged, message in (
        (array_of(FLOATS)[:-4], "embeddings.npy cannot be read"),
        (array_of(np.array([None, {}])), "holds Python objects"),
        (array_of(FLOATS).replace(b"(4, 3)", b"(9, 9)"), "cannot be read"),
    ):
        place.write_bytes(damaged)
        with pytest.raises(ConfigError, match=message):
            read_feature_bank(tmp_path)
    place.write_bytes(array_of(FLOATS.astype(np.float16)))
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", "40")
    with pytest.raises(ConfigError, match="as float32 has 48 bytes, and at most 40"):
        read_feature_bank(tmp_path)


def test_bfloat16_stays_in_its_file_until_its_size_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = torch.from_numpy(FLOATS).bfloat16()
    more = torch.ones(1000, 3, dtype=torch.bfloat16)
    held = {"embeddings": exact, "labels": torch.from_numpy(LABELS), "more": more}
    save_file(held, tmp_path / "all.safetensors")
    (tmp_path / "class_names.json").write_text('["cat", "dog"]')
    images = read_feature_bank(tmp_path).images
    assert isinstance(images, FeatureBank)
    assert torch.equal(images.embeddings, exact.float())
    converted: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "float", converted.append)
    read_feature_bank(tmp_path)
    assert not converted
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", "40")
    with pytest.raises(ConfigError, match="as float32 has 48 bytes, and at most 40"):
        read_feature_bank(tmp_path)


@pytest.mark.parametrize("name", ["class_names", "split", "domains"])
def test_mapped_texts_are_bounded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for array, held in (("embeddings", FLOATS), ("labels", LABELS)):
        np.save(tmp_path / f"{array}.npy", held)
    np.save(tmp_path / "class_names.npy", NAMES)
    long = np.array([b"train", b"test"] * 4, dtype="S1000")
    np.save(tmp_path / f"{name}.npy", long)
    for bound, least in (("RECORDS", 7), ("ARRAYS", 31_999)):
        with monkeypatch.context() as patch:
            patch.setenv(f"PRIVAUDIT_MAX_{bound}", str(least))
            with pytest.raises(ConfigError, match=f"{name} of .* has {least + 1:,}"):
                read_feature_bank(tmp_path)


def array_of(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_damaged_missing_and_several_files_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no \.npz file in"):
        read_feature_bank(tmp_path)
    path = write(tmp_path)
    (tmp_path / "other.npz").write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ConfigError, match=r"holds bank\.npz, other\.npz"):
        read_feature_bank(tmp_path)
    for damaged in (path.read_bytes()[:-50], b"", b"text", b"\x80\x04N."):
        (tmp_path / "other.npz").write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"other\.npz cannot be read"):
            read_feature_bank(tmp_path / "other.npz")
