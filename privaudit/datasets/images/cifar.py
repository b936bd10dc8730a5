"""CIFAR-10 and CIFAR-100, from their binary archives or as pictures in class folders.

Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009, and
https://www.cs.toronto.edu/~kriz/cifar.html for the layout of the binary version.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import UInt8

from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.core.limits import check_limit
from privaudit.datasets.dataset import DATASETS, TEST_SPLIT, TRAIN, Dataset, PixelImages
from privaudit.datasets.files.archives import is_archive
from privaudit.datasets.images.class_folders import readable, require_classes
from privaudit.datasets.images.image_folder import sort_by_class
from privaudit.datasets.images.picture_files import store_in
from privaudit.datasets.sources import OnDisk
from privaudit.datasets.store import Store, is_picture

PIXELS = 3 * 32 * 32
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Layout:
    """One of the two data sets.

    Attributes:
        classes: 10 or 100.
        label_bytes: In front of each picture; the last one is the class.
        train: Files of the training part, in order.
        test: The file of the test part.
        names: The file of the class names.
    """

    classes: int
    label_bytes: int
    train: tuple[str, ...]
    test: str
    names: str

    @property
    def archive(self) -> str:
        """The usual archive's name."""
        return f"cifar-{self.classes}-binary.tar.gz"

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        return (*self.train, self.test, self.names)


CIFAR10 = Layout(
    10, 1, tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin",
    "batches.meta.txt",
)  # fmt: skip
CIFAR100 = Layout(100, 2, ("train.bin",), "test.bin", "fine_label_names.txt")


def read_cifar(path: Path, layout: Layout) -> Dataset:
    """Read the binary version, or pictures as train/CLASS/*.jpg and test/CLASS/*.jpg.

    Raises:
        MissingFileError: A file is missing.
        DatasetError: It is the Python version, whose pickles are never read, or it is
            damaged, or has another number of classes.
    """

    def wanted(name: str) -> bool:
        return is_picture(name) or PurePosixPath(name).name in layout.files

    store = store_in(_chosen(path, layout), wanted)
    if not store.names:
        raise DatasetError(
            f"{store.path} holds no pictures, and none of {', '.join(layout.files)}. "
            "CIFAR's Python version is not read: its pickles can run any code. "
            f"Download the binary version, {layout.archive}, from {PAGE}."
        )
    if any(name.endswith(".bin") for name in store.names):
        return _read_binary(store, layout)
    dataset = sort_by_class(store)
    if len(dataset.class_names) != layout.classes:
        raise DatasetError(
            f"{store.path} holds {len(dataset.class_names)} classes, and CIFAR-"
            f"{layout.classes} has {layout.classes}. Name its folder or archive, or "
            "use image-folder."
        )
    return dataset


def _chosen(path: Path, layout: Layout) -> Path:
    """Return the usual archive where a folder holds it among others."""
    usual = path / layout.archive
    return usual if is_archive(usual) else path


def _read_binary(store: Store, layout: Layout) -> Dataset:
    where = {PurePosixPath(name).name: name for name in store.names}
    for name in layout.files:
        if name not in where:
            raise MissingFileError(
                f"There is no {name} in {store.path}. Download {layout.archive} from "
                f"{PAGE} again."
            )
    files = [*layout.train, layout.test]
    rows = [_rows(store, where[name], layout) for name in files]
    everything = torch.from_numpy(np.concatenate(rows))
    labels = everything[:, layout.label_bytes - 1].long()
    pixels = everything[:, layout.label_bytes :].reshape(-1, 3, 32, 32)
    listed = store.read(where[layout.names])
    check_limit("text", len(listed), f"{layout.names} in {store.path}")
    names = _names(listed.decode(errors="replace").split("\n"))
    require_classes(labels, names, store.path)
    sizes = torch.tensor([len(part) for part in rows])
    kinds = torch.tensor([TRAIN] * len(layout.train) + [TEST_SPLIT])
    split = kinds.repeat_interleave(sizes)
    return Dataset(PixelImages(pixels), labels, names, split=split)


def _rows(store: Store, name: str, layout: Layout) -> UInt8[np.ndarray, "n row"]:
    row = layout.label_bytes + PIXELS
    content = np.frombuffer(store.read(name), dtype=np.uint8)
    if len(content) == 0 or len(content) % row:
        raise DatasetError(
            f"{name} in {store.path} has {len(content)} bytes, which is no multiple "
            f"of {row}: it was cut. Download {layout.archive} from {PAGE} again."
        )
    return content.reshape(-1, row)


def _names(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(readable(line) for line in lines if line.strip())


for _layout in (CIFAR10, CIFAR100):
    DATASETS.register(f"cifar{_layout.classes}")(
        OnDisk(
            summary=f"CIFAR-{_layout.classes}: 60,000 images of 32 by 32 pixels.",
            needs=f"{_layout.archive} or its files, or images as train/CLASS/* and "
            "test/CLASS/*, in a folder or an archive",
            source=f"Download the binary version, {_layout.archive}, from {PAGE}",
            read=partial(read_cifar, layout=_layout),
        )
    )
