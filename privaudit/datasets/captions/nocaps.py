"""NoCaps: captions of pictures with things that MSCOCO does not know.

Source: Agrawal et al., "nocaps: novel object captioning at scale", ICCV 2019.
"""

from pathlib import Path

from privaudit.datasets.captions.coco_files import read_captions
from privaudit.datasets.dataset import DATASETS, Dataset
from privaudit.datasets.dialogues import Dialogue
from privaudit.datasets.images.class_folders import number
from privaudit.datasets.images.picture_files import PictureFiles, store_of
from privaudit.datasets.sources import OnDisk, only_file
from privaudit.datasets.text.question_texts import DESCRIBE

UNKNOWN = "unknown domain"


def read_nocaps(path: Path, question: str = DESCRIBE) -> Dataset:
    """Read the validation part's captions, ten for each picture.

    The class is how far the things are from MSCOCO's, as the file says: in-domain,
    near-domain or out-domain.

    Args:
        path: The folder, or the caption file.
        question: What is asked about each picture.

    Raises:
        MissingFileError: The file or a picture is missing.
        ConfigError: The file is damaged, or there are several.
    """
    file = _find(path)
    pictures = read_captions(file)
    labels, domains = number([one.domain or UNKNOWN for one in pictures])
    store, names = store_of(file.parent, [one.file for one in pictures])
    return Dataset(
        PictureFiles(store, names), labels, domains,
        dialogues=tuple(Dialogue(question, one.captions) for one in pictures),
    )  # fmt: skip


def _find(path: Path) -> Path:
    return only_file(
        path,
        "nocaps*captions*.json",
        f"There is no nocaps_val_4500_captions.json in {path}. Get it from "
        "https://nocaps.org/download.",
    )


DATASETS.register("nocaps")(
    OnDisk(
        summary="NoCaps: captions of images with objects that MSCOCO does not have.",
        needs="nocaps_val_4500_captions.json, and beside it the images, in a folder "
        "or an archive",
        source="Download the captions from "
        "https://nocaps.s3.amazonaws.com/nocaps_val_4500_captions.json and each "
        "image from its coco_url",
        read=read_nocaps,
    )
)
