import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, PixelImages
from privaudit.datasets.images.cifar import CIFAR10, CIFAR100, Layout
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import Payload, tree, write_archive, write_folder

LAYOUTS = pytest.mark.parametrize("layout", [CIFAR10, CIFAR100])


def label_bytes(layout: Layout) -> int:
    return {10: 1, 100: 2}[layout.classes]


def rows(layout: Layout, count: int, seed: int) -> bytes:
    """Every label is there; a picture's first red pixel is its label."""
    labels = np.arange(count) % layout.classes
    table = np.random.default_rng(seed).integers(
        0, 256, (count, label_bytes(layout) + 3072), dtype=np.uint8
    )
    table[:, -3073] = table[:, -3072] = labels
    return table.tobytes()


def binary(layout: Layout) -> dict[str, bytes]:
    folder = f"cifar-{layout.classes}-batches-bin/"
    files = {
        name: rows(layout, layout.classes, seed)
        for seed, name in enumerate(layout.versions[0].files[:-1])
    }
    names = "".join(f"class_{number:02d}\n" for number in range(layout.classes))
    return {
        folder + k: v
        for k, v in {**files, layout.versions[0].names: names.encode()}.items()
    }


@LAYOUTS
@pytest.mark.parametrize("place", ["archive", "folder of it", "extracted", "its own"])
def test_the_binary_version_is_read_wherever_it_lies(
    layout: Layout, place: str, tmp_path: Path
) -> None:
    files = binary(layout)
    path = write_archive(tmp_path / layout.versions[0].archive, files)
    if place in ("extracted", "its own"):
        path = write_folder(tmp_path / "out", files)
    if place == "its own":
        path = path / f"cifar-{layout.classes}-batches-bin"
    if place == "folder of it":
        write_archive(tmp_path / "other.zip", tree("a", "b"))
        path = tmp_path
    dataset = load_dataset(f"cifar{layout.classes}", path)
    parts = len(layout.versions[0].train) + 1
    assert dataset.class_names[:2] == ("class 00", "class 01")
    assert len(dataset) == parts * layout.classes
    assert dataset.split is not None
    assert torch.bincount(dataset.split).tolist() == [
        (parts - 1) * layout.classes, 0, layout.classes,
    ]  # fmt: skip
    assert (dataset.split[-layout.classes :] == TEST_SPLIT).all()
    assert dataset.split[0] == TRAIN
    assert isinstance(dataset.images, PixelImages)
    assert dataset.images.pixels.shape[1:] == (3, 32, 32)
    assert torch.equal(dataset.images.pixels[:, 0, 0, 0].long(), dataset.labels)


def test_the_channels_are_red_green_and_blue_by_hand(tmp_path: Path) -> None:
    """1024 reds, then greens, then blues, each row by row."""
    table = np.zeros((10, 3073), dtype=np.uint8)
    table[:, 0] = np.arange(10)
    table[0, 1 + 32], table[0, 1 + 1024], table[0, 1 + 2048 + 1] = 10, 20, 30
    files = binary(CIFAR10)
    files["cifar-10-batches-bin/data_batch_1.bin"] = table.tobytes()
    dataset = load_dataset("cifar10", write_folder(tmp_path, files))
    first = dataset.images[0]  # type: ignore[index]
    assert (first[0, 1, 0], first[1, 0, 0], first[2, 0, 1]) == (10, 20, 30)
    assert first.int().sum() == 60


@LAYOUTS
def test_pictures_in_class_folders_are_read_too(layout: Layout, tmp_path: Path) -> None:
    folders = [
        f"{part}/class_{number:02d}"
        for part in ("train", "test")
        for number in range(layout.classes)
    ]
    path = write_archive(tmp_path / "jpeg.tar.xz", tree(*folders, each=1))
    dataset = load_dataset(f"cifar{layout.classes}", path)
    assert dataset.split is not None
    assert len(dataset) == 2 * layout.classes
    assert dataset.class_names[9] == "class 09"


def python_2_array(table: np.ndarray[Any, Any]) -> bytes:
    """Return the steps that CIFAR's own files have for an array, by hand."""
    shape = b"".join(b"M" + struct.pack("<H", length) for length in table.shape)
    content = table.tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K"
        b"\x01" + shape + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ"
        b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", len(content)) + content + b"tb"
    )  # fmt: skip


def python_2_part(layout: Layout, content: bytes) -> bytes:
    """Return the pickle of a part of the binary version, as Python 2 wrote it."""
    row = len(content) // layout.classes
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, row)
    labels = b"".join(b"K" + bytes([n]) for n in table[:, -3073].tolist())
    key = b"fine_labels" if layout.classes == 100 else b"labels"
    pixels = python_2_array(np.ascontiguousarray(table[:, -3072:]))
    return (
        b"\x80\x02}q\x01(U\x0bbatch_labelU\x04partU\x04data" + pixels
        + b"U" + bytes([len(key)]) + key + b"](" + labels + b"eu."
    )  # fmt: skip


def python(layout: Layout) -> dict[str, bytes]:
    """Return the Python version of the same content."""
    binary_files = {Path(name).name: file for name, file in binary(layout).items()}
    folder = {10: "cifar-10-batches-py/", 100: "cifar-100-python/"}[layout.classes]
    pickled = layout.versions[1]
    files = {
        name: python_2_part(layout, binary_files[other])
        for name, other in zip(
            pickled.files[:-1], layout.versions[0].files[:-1], strict=True
        )
    }
    names = binary_files[layout.versions[0].names].decode().split()
    key = "fine_label_names" if layout.classes == 100 else "label_names"
    listed = "".join(f"S'{name}'\na" for name in names)
    files[pickled.names] = f"(dp1\nS'{key}'\np2\n(lp3\n{listed}s.".encode()
    return {folder + name: file for name, file in files.items()}


@LAYOUTS
@pytest.mark.parametrize("form", ["archive", "folder"])
def test_the_python_version_is_the_same_data_set(
    layout: Layout, form: str, tmp_path: Path
) -> None:
    wanted = load_dataset(
        f"cifar{layout.classes}", write_folder(tmp_path / "binary", binary(layout))
    )
    if form == "archive":
        path = write_archive(tmp_path / layout.versions[1].archive, python(layout))
    else:
        path = write_folder(tmp_path / "python", python(layout))
    found = load_dataset(f"cifar{layout.classes}", path)
    assert found.hash == wanted.hash
    assert unpickled(python(layout)) == torch.bincount(wanted.labels).sum()


def unpickled(files: dict[str, bytes]) -> int:
    """Count the records with Python's own unpickler: the files are as it wrote them."""
    parts = [
        pickle.loads(content, encoding="bytes")
        for name, content in files.items()
        if not name.endswith("meta")
    ]
    assert all(part[b"data"].shape[1] == 3072 for part in parts)
    return sum(len(part[b"data"]) for part in parts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Payload(), "nothing of it was run"),
        ({"data": Payload()}, "nothing of it was run"),
        ([1, 2], "holds a list"),
        ({"labels": [1]}, "no array 'data'"),
        ({"data": np.zeros((2, 3072), np.int16), "labels": [1, 2]}, "no array 'data'"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "has 2 pictures"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1, -1]}, "has 2 pictures"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": ["1", 1]}, "has 2 pictures"),
    ],
)
def test_another_pickle_in_its_place_is_one_clear_line(
    content: Any, message: str, tmp_path: Path
) -> None:
    name = "cifar-10-batches-py/data_batch_2"
    files = {**python(CIFAR10), name: pickle.dumps(content)}
    with pytest.raises(ConfigError, match=message) as caught:
        load_dataset("cifar10", write_folder(tmp_path, files))
    assert "data_batch_2" in str(caught.value)


def test_a_cut_or_missing_file_and_other_classes_are_one_clear_line(
    tmp_path: Path,
) -> None:
    files, batch = binary(CIFAR10), "cifar-10-batches-bin/data_batch_3.bin"
    cut = write_folder(tmp_path / "cut", {**files, batch: files[batch][:-1]})
    with pytest.raises(ConfigError, match=r"data_batch_3\.bin .* 30729 bytes"):
        load_dataset("cifar10", cut)
    gone = write_folder(tmp_path / "gone", {k: files[k] for k in files if k != batch})
    with pytest.raises(MissingFileError, match=r"no data_batch_3\.bin in"):
        load_dataset("cifar10", gone)
    three = write_folder(tmp_path / "three", tree("train/a", "train/b", "test/c"))
    with pytest.raises(ConfigError, match="holds 3 classes, and CIFAR-10 has 10"):
        load_dataset("cifar10", three)
