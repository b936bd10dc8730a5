"""Captions and objects in the JSON form of Microsoft COCO.

Source: Lin et al., "Microsoft COCO: common objects in context", ECCV 2014; Chen et al.,
"Microsoft COCO captions: data collection and evaluation server", 2015.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from privaudit.core.errors import DatasetError
from privaudit.datasets.files.checked_json import read_checked


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
        captions: One or more.
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
