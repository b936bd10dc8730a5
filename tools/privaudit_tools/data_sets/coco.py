"""Captions in the JSON form of Microsoft COCO: its own, by the largest object, and NoCaps.

Source: Lin et al., "Microsoft COCO: common objects in context", ECCV 2014; Chen et al.,
"Microsoft COCO captions: data collection and evaluation server", 2015; Agrawal et al.,
"nocaps: novel object captioning at scale", ICCV 2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired

import torch
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from privaudit.core.errors import DatasetError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, Dataset
from privaudit.datasets.files.archives import FolderStore
from privaudit.datasets.files.checked_json import read_checked
from privaudit.datasets.images.picture_files import (
    PictureFiles,
    number,
    pictures_of,
    require_classes,
)
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import OnDisk, only_file
from privaudit.datasets.text.question_texts import DESCRIBE


class _Image(TypedDict):
    id: int
    file_name: str
    domain: NotRequired[str]


class _Caption(TypedDict):
    image_id: int
    caption: str


class _CaptionFile(TypedDict):
    images: list[_Image]
    annotations: list[_Caption]


class _Thing(TypedDict):
    image_id: int
    category_id: int
    area: float


class _Category(TypedDict):
    id: int
    name: str


class _InstanceFile(TypedDict):
    annotations: list[_Thing]
    categories: list[_Category]


CAPTION_FILE = TypeAdapter(_CaptionFile)
INSTANCE_FILE = TypeAdapter(_InstanceFile)


@dataclass(frozen=True)
class Captioned:
    """A picture and what people wrote of it.

    Attributes:
        captions: At least one, as people wrote them.
        domain: Of NoCaps; empty where the file says none.
    """

    number: int
    file: str
    captions: tuple[str, ...]
    domain: str = ""


def read_captions(path: Path) -> list[Captioned]:
    """Return the pictures of a caption file, in its order."""
    content = read_checked(path, CAPTION_FILE)
    by_picture: dict[int, list[str]] = {image["id"]: [] for image in content["images"]}
    if not by_picture or len(by_picture) < len(content["images"]):
        raise DatasetError(
            f"{path} lists {len(content['images'])} pictures under {len(by_picture)} "
            "numbers. List at least one, and each once. Get it again."
        )
    for entry in content["annotations"]:
        number, caption = entry["image_id"], entry["caption"].strip()
        if number not in by_picture or not caption:
            raise DatasetError(
                f"{path} gives picture {number} the caption {caption!r}; captions are "
                "not blank, and their pictures are listed. Fix it, or take it out."
            )
        by_picture[number].append(caption)
    if bare := [number for number, captions in by_picture.items() if not captions]:
        raise DatasetError(
            f"{path} lists picture {bare[0]}, and no caption of it. Add one, or take "
            "the picture out."
        )
    return [
        Captioned(
            i["id"], i["file_name"], tuple(by_picture[i["id"]]), i.get("domain", "")
        )
        for i in content["images"]
    ]


def largest_things(path: Path) -> dict[int, str]:
    """Return the category of each picture's largest object, by the picture's number.

    Of two as large the first counts; a crowd is one object. Pictures without objects
    are not there.
    """
    content = read_checked(path, INSTANCE_FILE)
    names = {category["id"]: category["name"] for category in content["categories"]}
    largest: dict[int, _Thing] = {}
    for thing in content["annotations"]:
        if thing["category_id"] not in names:
            raise DatasetError(
                f"{path} has an object of category {thing['category_id']} in picture "
                f"{thing['image_id']}, and no such category. Get it again."
            )
        known = largest.setdefault(thing["image_id"], thing)
        if thing["area"] > known["area"]:
            largest[thing["image_id"]] = thing
    return {number: names[thing["category_id"]] for number, thing in largest.items()}


PARTS = {"train": TRAIN, "val": TEST_SPLIT}  # captions of COCO's own test are secret


@dataclass(frozen=True)
class CocoFile:
    """The pictures of one caption file that have objects, and their files."""

    kind: int
    captioned: list[Captioned]
    classes: list[str]
    files: PictureFiles


def read_mscoco_captions(path: Path, question: str = DESCRIBE) -> Dataset:
    """Read captions_*.json with instances_*.json beside it, and the pictures.

    Pictures without any marked object have no class to be split by, and are left out
    (about 1 in 100). With a file of train and one of val, val is the test part; one
    file alone, or one that is named in place of the folder, comes in one piece.
    """
    root, files = _find(path)
    kinds = [TRAIN] if len(files) == 1 else [_kind(file, files) for file in files]
    parts = [_read_part(root, *pair) for pair in zip(files, kinds, strict=True)]
    captioned = [one for part in parts for one in part.captioned]
    labels, class_names = number([name for part in parts for name in part.classes])
    require_classes(labels, class_names, root)
    split = torch.tensor([part.kind for part in parts for _ in part.captioned])
    return Dataset(
        _join(root, parts), labels, class_names,
        split=split if len(files) > 1 else None,
        dialogues=tuple(Dialogue(question, one.captions) for one in captioned),
    )  # fmt: skip


MSCOCO_CAPTIONS = OnDisk(
    summary="MSCOCO captions: images of objects in context, by the largest thing.",
    needs="captions_train2017.json and instances_train2017.json, there or in "
    "annotations/, and the images in train2017/; optionally the same of val2017",
    source="Download annotations_trainval2017.zip and train2017.zip from "
    "https://cocodataset.org/#download",
    folders=("coco", "mscoco"),
    read=read_mscoco_captions,
)


def _find(path: Path) -> tuple[Path, list[Path]]:
    """Return the folder of the pictures, and the caption files."""
    if path.is_file():
        home = path.parent
        return (home.parent if home.name == "annotations" else home), [path]
    for folder in (path, path / "annotations"):
        if caption_files := sorted(folder.glob("captions_*.json")):
            return path, caption_files
    raise MissingFileError(
        f"There is no captions_*.json in {path}, nor in its annotations/. Put it there."
    )


def _kind(file: Path, files: Sequence[Path]) -> int:
    """Return which part a caption file is; each part has one."""
    stems = [other.stem.removeprefix("captions_") for other in files]
    file_stem = file.stem.removeprefix("captions_")
    part = next((part for part in PARTS if file_stem.startswith(part)), None)
    if part is None or sum(stem.startswith(part) for stem in stems) > 1:
        raise DatasetError(
            f"{file.parent} holds {', '.join(other.name for other in files)}. Leave "
            "one for train and one for val, or name one of them."
        )
    return PARTS[part]


def _read_part(root: Path, file: Path, kind: int) -> CocoFile:
    things = largest_things(file.with_name(file.name.replace("captions", "instances")))
    pictures = [one for one in read_captions(file) if one.number in things]
    if not pictures:
        raise DatasetError(
            f"No picture of {file} has an object in the instances_*.json beside it. "
            "Get both again, of the same part."
        )
    classes = [things[one.number] for one in pictures]
    place = root / "images" if (root / "images").is_dir() else root
    files = pictures_of(place, [one.file for one in pictures])
    return CocoFile(kind, pictures, classes, files)


def _join(root: Path, parts: Sequence[CocoFile]) -> PictureFiles:
    """Return the pictures of all parts in one place."""
    if len(parts) == 1:
        return parts[0].files
    names: list[str] = []
    for store, inside in ((part.files.store, part.files.names) for part in parts):
        if not isinstance(store, FolderStore):
            raise DatasetError(
                f"The pictures of one part are in the archive {store.path}. "
                "Extract it, or name one caption file."
            )
        folder = store.path.relative_to(root).as_posix()
        names += [f"{folder}/{name}" for name in inside]
    return PictureFiles(FolderStore(root), names)


UNKNOWN = "unknown domain"


def read_nocaps(path: Path, question: str = DESCRIBE) -> Dataset:
    """Read the validation part's captions, ten for each picture.

    The class is how far the things are from MSCOCO's, as the file says: in-domain,
    near-domain or out-domain.
    """
    missing = (
        f"There is no nocaps_val_4500_captions.json in {path}. Get it from "
        "https://nocaps.org/download."
    )
    file = only_file(path, "nocaps*captions*.json", missing)
    captioned = read_captions(file)
    labels, domains = number([one.domain or UNKNOWN for one in captioned])
    pictures = pictures_of(file.parent, [one.file for one in captioned])
    dialogues = tuple(Dialogue(question, one.captions) for one in captioned)
    return Dataset(pictures, labels, domains, dialogues=dialogues)


NOCAPS = OnDisk(
    summary="NoCaps: captions of images with objects that MSCOCO does not have.",
    needs="nocaps_val_4500_captions.json, and beside it the images, in a folder "
    "or an archive",
    source="Download the captions from "
    "https://nocaps.s3.amazonaws.com/nocaps_val_4500_captions.json and each "
    "image from its coco_url",
    read=read_nocaps,
)
