"""A folder or archive with a folder for each class."""

from pathlib import Path

from privaudit.datasets.dataset import Dataset
from privaudit.datasets.images.class_folders import (
    levels_of,
    number,
    require_classes,
    take_split,
)
from privaudit.datasets.images.picture_files import PictureFiles, store_in
from privaudit.datasets.sources import on_disk
from privaudit.datasets.store import Store


@on_disk(
    "image-folder",
    summary="Your images, in a folder for each class.",
    needs="CLASS/*.jpg, or the same below train/, val/ and test/, in a folder or "
    "a .tar, .tar.gz, .tar.xz or .zip",
    source="Sort your images so",
)
def read_image_folder(path: Path) -> Dataset:
    """Read CLASS/picture.jpg, or SPLIT/CLASS/picture.jpg with train, val and test."""
    return sort_by_class(store_in(path))


def sort_by_class(store: Store) -> Dataset:
    """Return the pictures of a store, each in the class that its folder names."""
    split, levels = take_split(levels_of(store, wanted=1))
    labels, names = number([parts[0] for parts in levels])
    require_classes(labels, names, store.path)
    return Dataset(PictureFiles(store, store.names), labels, names, split=split)
