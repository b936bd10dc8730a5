from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, PixelImages
from privaudit.datasets.images.cifar import CIFAR10, CIFAR100, Layout
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import tree, write_archive, write_folder

LAYOUTS = pytest.mark.parametrize("layout", [CIFAR10, CIFAR100])


def rows(layout: Layout, count: int, seed: int) -> bytes:
    """Every label is there; a picture's first red pixel is its label."""
    labels = np.arange(count) % layout.classes
    table = np.random.default_rng(seed).integers(
        0, 256, (count, layout.label_bytes + 3072), dtype=np.uint8
    )
    table[:, layout.label_bytes - 1] = table[:, layout.label_bytes] = labels
    return table.tobytes()


def binary(layout: Layout) -> dict[str, bytes]:
    folder = f"cifar-{layout.classes}-batches-bin/"
    files = {
        name: rows(layout, layout.classes, seed)
        for seed, name in enumerate((*layout.train, layout.test))
    }
    names = "".join(f"class_{number:02d}\n" for number in range(layout.classes))
    return {folder + k: v for k, v in {**files, layout.names: names.encode()}.items()}


@LAYOUTS
@pytest.mark.parametrize("place", ["archive", "folder of it", "extracted", "its own"])
def test_the_binary_version_is_read_wherever_it_lies(
    layout: Layout, place: str, tmp_path: Path
) -> None:
    files = binary(layout)
    path = write_archive(tmp_path / layout.archive, files)
    if place in ("extracted", "its own"):
        path = write_folder(tmp_path / "out", files)
    if place == "its own":
        path = path / f"cifar-{layout.classes}-batches-bin"
    if place == "folder of it":
        write_archive(tmp_path / "other.zip", tree("a", "b"))
        path = tmp_path
    dataset = load_dataset(f"cifar{layout.classes}", path)
    parts = len(layout.train) + 1
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


@LAYOUTS
@pytest.mark.parametrize("form", ["archive", "folder"])
def test_the_python_version_is_refused_with_the_others_name(
    layout: Layout, form: str, tmp_path: Path
) -> None:
    files = {"cifar-10-batches-py/data_batch_1": b"\x80\x04", "cifar-100-python/x": b""}
    if form == "archive":
        path = tmp_path / f"cifar-{layout.classes}-python.tar.gz"
        write_archive(path, files)
    else:
        path = write_folder(tmp_path, files)
    with pytest.raises(ConfigError, match=f"pickles .* {layout.archive}, from https"):
        load_dataset(f"cifar{layout.classes}", path)


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
