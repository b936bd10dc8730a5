"""Pictures with a split in CoOp's form: split_zhou_*.json, and the data sets it is for.

Source: Zhou, Yang, Loy, Liu, "Learning to prompt for vision-language models", IJCV
2022: folders and files as its DATASETS.md puts them, and the hand-written prompts of
its zero-shot CLIP. Class names are those of the split, with blanks for underscores.

Its few-shot splits, split_fewshot/shot_N-seed_S.pkl, pickle {"train": [...], "val":
[...]} of Dassl's Datum, which holds a picture's full path on the machine of whoever drew
the split, its label, its domain and its class's name. They are read with nothing of them
run.

FGVC Aircraft comes with lists of its own, which CoOp uses too. Source: Maji, Kannala,
Rahtu, Blaschko, Vedaldi, "Fine-grained visual classification of aircraft", 2013; the
variants are the classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter

from privaudit.core.errors import DatasetError, shown
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.files.plain_pickle import Stateful, read_plain_pickle
from privaudit.datasets.images.picture_files import (
    PARTS,
    pictures_of,
    readable,
    require_classes,
)
from privaudit.datasets.sources import on_disk, only_file

Label = Annotated[int, Field(strict=True, gt=-(2**31), lt=2**31)]
Row = tuple[str, Label, str]  # a file, its label, the class's name
DEEPEST = 64  # parts of a path, each of which may begin the name


class _Datum(Stateful):
    """What a pickled record says of itself."""

    def __init__(self) -> None:
        self.fields: Mapping[Any, Any] = {}

    def set_state(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("a record whose state is no dict")
        self.fields = state


_CONSTRUCTORS = {
    f"{module}.Datum": _Datum
    for module in (
        "dassl.data.datasets.base_dataset",
        "dassl.data.datasets",
        "Dassl.dassl.data.datasets.base_dataset",  # FedOTP's, DP-FPL's: their own copy
    )
}


def read_few_shot(path: Path, known: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of a few-shot split, each with the file's name in the full split.

    ``known`` are rows of the full split's train and val, whose names end the pickle's
    paths.
    """
    found = read_plain_pickle(read_bytes(path, "list"), str(path), _CONSTRUCTORS)
    if not isinstance(found, dict) or not found.get("train"):
        raise DatasetError(f"{path} lists no picture under train. Get it again.")
    by_name = {row[0]: row for row in known}
    lengths = sorted({name.count("/") + 1 for name in by_name}, reverse=True)
    return {
        part: [
            _row(path, one, by_name, lengths)
            for one in _listed(path, found.get(part), len(known))
        ]
        for part in ("train", "val")
    }


def _listed(path: Path, part: Any, most: int) -> list[Any]:
    if part is None:
        return []
    if not isinstance(part, list) or not all(isinstance(one, _Datum) for one in part):
        raise DatasetError(f"{path} does not list records. Get it again.")
    if len(part) > most:
        raise DatasetError(
            f"{path} lists {len(part):,} records, and train and val of the full split "
            f"have {most:,}. Use the two of one download."
        )
    return part


def _row(
    path: Path, one: _Datum, known: Mapping[str, Row], lengths: Sequence[int]
) -> Row:
    """Return the full split's row of the picture whose path a record ends with."""
    full, label = one.fields.get("_impath"), one.fields.get("_label")
    if not isinstance(full, str) or type(label) is not int or len(full) > 4096:
        raise DatasetError(f"A record in {path} has no path or no label. Get it again.")
    parts = PurePosixPath(full.replace("\\", "/")).parts
    if len(parts) > DEEPEST:
        raise DatasetError(
            f"A record in {path} lies in more than {DEEPEST} folders. Get it again."
        )
    names = ("/".join(parts[-length:]) for length in lengths if length <= len(parts))
    row = next((known[name] for name in names if name in known), None)
    if row is None or row[1] != label:
        raise DatasetError(
            f"{path} has {shown(full)} with label {label}, and train and val of the "
            "full split have not. Use the two of one download."
        )
    return row


GUIDE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
SPLIT = TypeAdapter(dict[str, list[Row]])


@dataclass(frozen=True)
class CoopPart:
    """A data set that CoOp has a split of.

    Attributes:
        summary: What it is, in one line.
        split: Of the split file's name: split_zhou_SPLIT.json.
        pictures: The folder of the pictures, inside it.
    """

    name: str
    summary: str
    folder: str
    split: str
    pictures: str
    page: str
    template: str = "a photo of a {}."

    @property
    def file(self) -> str:
        """The split file's name."""
        return f"split_zhou_{self.split}.json"


_VGG = "https://www.robots.ox.ac.uk/~vgg/data"
KNOWN = (
    CoopPart(
        "caltech101", "Caltech101: 100 classes of objects and faces.",
        "caltech-101", "Caltech101", "101_ObjectCategories",
        "https://data.caltech.edu/records/mzrjq-6wc02",
    ),
    CoopPart(
        "oxford-pets", "OxfordPets: 37 breeds of cats and dogs.",
        "oxford_pets", "OxfordPets", "images", f"{_VGG}/pets/",
        "a photo of a {}, a type of pet.",
    ),
    CoopPart(
        "flowers102", "Flowers102: 102 kinds of flowers.",
        "oxford_flowers", "OxfordFlowers", "jpg", f"{_VGG}/flowers/102/",
        "a photo of a {}, a type of flower.",
    ),
    CoopPart(
        "food101", "Food101: 101 dishes.",
        "food-101", "Food101", "images",
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        "a photo of {}, a type of food.",
    ),
    CoopPart(
        "dtd", "DTD: 47 describable textures.",
        "dtd", "DescribableTextures", "images", f"{_VGG}/dtd/",
        "{} texture.",
    ),
    CoopPart(
        "eurosat", "EuroSAT: 10 kinds of land from above.",
        "eurosat", "EuroSAT", "2750", "https://github.com/phelber/EuroSAT",
        "a centered satellite photo of {}.",
    ),
    CoopPart(
        "ucf101", "UCF101: 101 actions, the middle frame of each video.",
        "ucf101", "UCF101", "UCF-101-midframes", GUIDE,
        "a photo of a person doing {}.",
    ),
    CoopPart(
        "stanford-cars", "StanfordCars: 196 models of cars.",
        "stanford_cars", "StanfordCars", "cars_train and cars_test", GUIDE,
    ),
    CoopPart(
        "sun397", "SUN397: 397 scenes.",
        "sun397", "SUN397", "SUN397",
        "https://vision.princeton.edu/projects/2010/SUN/",
    ),
)  # fmt: skip


@on_disk(
    "coop-split",
    summary="Images with a split in CoOp's form.",
    needs="one split_zhou_*.json with lists of [file, label, class name], and the "
    "files beside it, in a folder beside it or in an archive beside it",
    source=f"Get or write such a split (see {GUIDE})",
)
def read_coop_split(path: Path, file: str = "split_zhou_*.json") -> Dataset:
    """Read pictures as a split says; those in no part of it do not count.

    Args:
        path: The folder that holds the split, or the split; or a few-shot split,
            which says what is trained on, while the split beside it or above its
            folder says what is tested on.
        file: The split's name, or a pattern for it.
    """
    few_shot = path if path.suffix == ".pkl" else None
    if few_shot:
        beside = few_shot.parent
        path = beside if any(beside.glob(file)) else beside.parent
    missing = f"There is no {file} in {path}. Get it from {GUIDE}."
    split_file = only_file(path, file, missing)
    parts = read_checked(split_file, SPLIT)
    if not parts.get("train"):
        raise DatasetError(f"{split_file} lists no picture under train. Get it again.")
    if few_shot:
        known = [*parts["train"], *parts.get("val", ())]
        parts |= read_few_shot(few_shot, known)
    rows = [row for part in PARTS for row in parts.get(part, ())]
    labels = torch.tensor([label for _, label, _ in rows])
    class_names = _class_names(rows, split_file)
    require_classes(labels, class_names, split_file)
    split = [kind for part, kind in PARTS.items() for _ in parts.get(part, ())]
    template = next((k.template for k in KNOWN if k.file == split_file.name), None)
    return Dataset(
        pictures_of(split_file.parent, [name for name, _, _ in rows]),
        labels,
        class_names,
        template=template or "a photo of a {}.",
        split=torch.tensor(split),
    )


def _class_names(rows: list[Row], path: Path) -> tuple[str, ...]:
    names: dict[int, str] = {}
    for file, label, name in rows:
        if names.setdefault(label, name) != name:
            raise DatasetError(
                f"{path} calls class {label} {names[label]!r}, and at {file} {name!r}. "
                "Make it one name."
            )
    gone = set(range(len(names))) - names.keys()
    if gone:
        raise DatasetError(
            f"{path} numbers {len(names)} classes from {min(names)} to {max(names)}, "
            f"and has no record of class {min(gone)}. Number them from 0 on, without "
            "gaps."
        )
    return tuple(readable(names[label]) for label in range(len(names)))


for _known in KNOWN:
    on_disk(
        _known.name,
        summary=_known.summary,
        needs=f"{_known.file}, and beside it the images: {_known.pictures}, or "
        "an archive of them",
        source=f"Download the images from {_known.page} and the split as "
        f"described at {GUIDE}"
        if _known.page != GUIDE
        else f"Download images and split as described at {GUIDE}",
        folders=(_known.folder,) if _known.folder != _known.name else (),
    )(partial(read_coop_split, file=_known.file))

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
