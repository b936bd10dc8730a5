"""FGVC Aircraft, by the lists that come with it: CoOp uses these too.

Source: Maji, Kannala, Rahtu, Blaschko, Vedaldi, "Fine-grained visual classification of
aircraft", 2013; the variants are the classes.
"""

from pathlib import Path

import torch

from privaudit.core.errors import DatasetError
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.images.class_folders import PARTS, require_classes
from privaudit.datasets.images.coop_split import read_coop_split
from privaudit.datasets.images.picture_files import pictures_of
from privaudit.datasets.sources import on_disk

TEMPLATE = "a photo of a {}, a type of aircraft."


@on_disk(
    "fgvc-aircraft",
    summary="FGVC Aircraft: 100 variants of aircraft.",
    needs="images/, variants.txt and images_variant_train.txt, _val.txt, _test.txt",
    source="Download fgvc-aircraft-2013b.tar.gz from "
    "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/ and take its data/ "
    "folder",
    folders=("fgvc_aircraft",),
)
def read_aircraft(path: Path) -> Dataset:
    """Read pictures as the lists say, or as a split in CoOp's form if there is one."""
    if path.is_file() or any(path.glob("split_zhou_*.json")):
        return read_coop_split(path)
    class_names = tuple(_lines(path / "variants.txt"))
    index = {name: label for label, name in enumerate(class_names)}
    files, labels, split = [], [], []
    for part, kind in PARTS.items():
        for line in _lines(path / f"images_variant_{part}.txt"):
            number, _, name = line.partition(" ")
            if name not in index:
                raise DatasetError(
                    f"{path / f'images_variant_{part}.txt'} gives picture {number} the "
                    f"variant {name!r}, which is not in variants.txt. Get both again."
                )
            files.append(f"{number}.jpg")
            labels.append(index[name])
            split.append(kind)
    numbers = torch.tensor(labels)
    require_classes(numbers, class_names, path)
    pictures = pictures_of(path, files)
    return Dataset(pictures, numbers, class_names, TEMPLATE, torch.tensor(split))


def _lines(path: Path) -> list[str]:
    text = read_bytes(path).decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
