"""CIFAR-10 and CIFAR-100, from their archives or as pictures in class folders.

Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009, and
https://www.cs.toronto.edu/~kriz/cifar.html for the layouts of the binary and the Python
version, which hold the same pictures in the same order. The latter's pickles of arrays
and lists are read with nothing of them run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.core.limits import check_limit
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, Dataset, PixelImages
from privaudit.datasets.files.archives import Store, is_archive, is_picture
from privaudit.datasets.files.plain_pickle import (
    PickledArray,
    array_constructors,
    read_plain_pickle,
)
from privaudit.datasets.images.image_folder import sort_by_class
from privaudit.datasets.images.picture_files import readable, require_classes, store_in
from privaudit.datasets.sources import on_disk

PIXELS = 3 * 32 * 32


def pickled_rows(content: bytes, what: str, labels: str) -> UInt8[np.ndarray, "n row"]:
    """Return a part as the binary version has it: the class, then reds, greens, blues.

    The classes stand under the key ``labels``.
    """
    entries = _entries(content, what)
    table, classes = entries.get("data"), entries.get(labels)
    array = table.array if isinstance(table, PickledArray) else np.zeros(0)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != PIXELS:
        raise DatasetError(
            f"{what} has no array 'data' of [n, {PIXELS}] unsigned bytes. Download it "
            "again."
        )
    numbers = classes if isinstance(classes, list) else []
    if len(numbers) != len(array) or any(
        type(number) is not int or not 0 <= number < 256 for number in numbers
    ):
        raise DatasetError(
            f"{what} has {len(array)} pictures, and no list {labels!r} of as many "
            "classes. Download it again."
        )
    column = np.array(numbers, dtype=np.uint8)[:, None]
    return np.concatenate([column, array], axis=1)


def pickled_names(content: bytes, what: str, key: str) -> Sequence[str]:
    """Return the class names in a pickle."""
    listed = _entries(content, what).get(key)
    names = [_decoded(name) for name in listed] if isinstance(listed, list) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise DatasetError(f"{what} has no list {key!r} of texts. Download it again.")
    return names


def _entries(content: bytes, what: str) -> dict[Any, Any]:
    """Return the pickle's dict, whose keys are bytes where Python 2 wrote them."""
    found = read_plain_pickle(content, what, array_constructors(content))
    if not isinstance(found, dict):
        raise DatasetError(
            f"{what} holds a {type(found).__name__}, and not CIFAR's dict. Download it "
            "again."
        )
    return {_decoded(key): value for key, value in found.items()}


def _decoded(text: Any) -> Any:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Version:
    """One form in which one of the two data sets is published.

    Attributes:
        train: Files of the training part, in order.
        test: The file of the test part.
        names: The file of the class names.
        read_rows: Returns the rows of a part, [n, 1 + 3072] with the class in front;
            takes its content and what it is.
        read_names: Returns the class names likewise.
    """

    archive: str
    train: tuple[str, ...]
    test: str
    names: str
    read_rows: Callable[[bytes, str], UInt8[np.ndarray, "n row"]]
    read_names: Callable[[bytes, str], Sequence[str]]

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        return (*self.train, self.test, self.names)


@dataclass(frozen=True)
class Layout:
    """One of the two data sets, with its versions, the first choice first."""

    classes: int
    versions: tuple[Version, Version]


def read_cifar(path: Path, layout: Layout) -> Dataset:
    """Read either version, or pictures as train/CLASS/*.jpg and test/CLASS/*.jpg.

    The Python version's pickles are read as data: nothing of them is run.
    """
    files = {name for version in layout.versions for name in version.files}

    def wanted(name: str) -> bool:
        return is_picture(name) or PurePosixPath(name).name in files

    usual = [path / version.archive for version in layout.versions]
    store = store_in(next(filter(is_archive, usual), path), wanted)
    where = {PurePosixPath(name).name: name for name in store.names}
    for version in layout.versions:
        if any(name in where for name in (*version.train, version.test)):
            return _read_version(store, where, version, layout)
    if not store.names:
        raise DatasetError(
            f"{store.path} holds no pictures, and none of "
            f"{', '.join(layout.versions[0].files)}. Download "
            f"{' or '.join(version.archive for version in layout.versions)} from {PAGE}."
        )
    dataset = sort_by_class(store)
    if len(dataset.class_names) != layout.classes:
        raise DatasetError(
            f"{store.path} holds {len(dataset.class_names)} classes, and CIFAR-"
            f"{layout.classes} has {layout.classes}. Name its folder or archive, or "
            "use image-folder."
        )
    return dataset


def _read_version(
    store: Store, where: dict[str, str], version: Version, layout: Layout
) -> Dataset:
    for name in version.files:
        if name not in where:
            raise MissingFileError(
                f"There is no {name} in {store.path}. Download {version.archive} from "
                f"{PAGE} again."
            )
    rows = [
        version.read_rows(store.read(where[name]), f"{name} in {store.path}")
        for name in (*version.train, version.test)
    ]
    everything = torch.from_numpy(np.concatenate(rows))
    labels = everything[:, 0].long()
    pixels = everything[:, 1:].reshape(-1, 3, 32, 32)
    listed, what = store.read(where[version.names]), f"{version.names} in {store.path}"
    check_limit("text", len(listed), what)
    lines = version.read_names(listed, what)
    names = tuple(readable(line) for line in lines if line.strip())
    require_classes(labels, names, store.path)
    sizes = torch.tensor([len(part) for part in rows])
    kinds = torch.tensor([TRAIN] * len(version.train) + [TEST_SPLIT])
    split = kinds.repeat_interleave(sizes)
    return Dataset(PixelImages(pixels), labels, names, split=split)


def _binary_rows(
    content: bytes, what: str, label_bytes: int
) -> UInt8[np.ndarray, "n row"]:
    """Return rows of which the last byte in front of a picture is its class."""
    row = label_bytes + PIXELS
    if len(content) == 0 or len(content) % row:
        raise DatasetError(
            f"{what} has {len(content)} bytes, which is no multiple of {row}: it was "
            f"cut. Download it from {PAGE} again."
        )
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, row)
    return table[:, label_bytes - 1 :]


def _binary_names(content: bytes, what: str) -> Sequence[str]:
    return content.decode(errors="replace").split("\n")


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10 = Layout(
    10,
    (
        Version(
            "cifar-10-binary.tar.gz", tuple(f"{batch}.bin" for batch in _BATCHES),
            "test_batch.bin", "batches.meta.txt",
            partial(_binary_rows, label_bytes=1), _binary_names,
        ),
        Version(
            "cifar-10-python.tar.gz", _BATCHES, "test_batch", "batches.meta",
            partial(pickled_rows, labels="labels"),
            partial(pickled_names, key="label_names"),
        ),
    ),
)  # fmt: skip
CIFAR100 = Layout(
    100,
    (
        Version(
            "cifar-100-binary.tar.gz", ("train.bin",), "test.bin",
            "fine_label_names.txt", partial(_binary_rows, label_bytes=2), _binary_names,
        ),
        Version(
            "cifar-100-python.tar.gz", ("train",), "test", "meta",
            partial(pickled_rows, labels="fine_labels"),
            partial(pickled_names, key="fine_label_names"),
        ),
    ),
)  # fmt: skip

for _layout in (CIFAR10, CIFAR100):
    on_disk(
        f"cifar{_layout.classes}",
        summary=f"CIFAR-{_layout.classes}: 60,000 images of 32 by 32 pixels.",
        needs=f"{' or '.join(version.archive for version in _layout.versions)} or "
        "its files, or images as train/CLASS/* and test/CLASS/*, in a folder or an "
        "archive",
        source=f"Download {_layout.versions[0].archive} from {PAGE}",
    )(partial(read_cifar, layout=_layout))
