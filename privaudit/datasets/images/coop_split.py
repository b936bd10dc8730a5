"""Pictures with a split in CoOp's form: split_zhou_*.json, and the data sets it is for.

Source: Zhou, Yang, Loy, Liu, "Learning to prompt for vision-language models", IJCV
2022: folders and files as its DATASETS.md puts them, and the hand-written prompts of
its zero-shot CLIP. Class names are those of the split, with blanks for underscores.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter

from privaudit.core.errors import DatasetError
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.images.class_folders import PARTS, readable, require_classes
from privaudit.datasets.images.coop_few_shot import Row, read_few_shot
from privaudit.datasets.images.picture_files import pictures_of
from privaudit.datasets.sources import on_disk, only_file

GUIDE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
SPLIT = TypeAdapter(dict[str, list[Row]])


@dataclass(frozen=True)
class CoopPart:
    """A data set that CoOp has a split of.

    Attributes:
        name: Here.
        summary: What it is, in one line.
        folder: Its folder in CoOp's layout.
        split: Of the split file's name: split_zhou_SPLIT.json.
        pictures: The folder of the pictures, inside it.
        page: Where the pictures are.
        template: CoOp's hand-written prompt.
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
