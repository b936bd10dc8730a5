"""NoCaps: captions of pictures with things that MSCOCO does not know.

Source: Agrawal et al., "nocaps: novel object captioning at scale", ICCV 2019.
"""

from pathlib import Path

from privaudit.datasets.captions.coco_files import read_captions
from privaudit.datasets.dataset import Dataset
from privaudit.datasets.dialogues import Dialogue
from privaudit.datasets.images.class_folders import number
from privaudit.datasets.images.picture_files import pictures_of
from privaudit.datasets.sources import on_disk, only_file
from privaudit.datasets.text.question_texts import DESCRIBE

UNKNOWN = "unknown domain"


@on_disk(
    "nocaps",
    summary="NoCaps: captions of images with objects that MSCOCO does not have.",
    needs="nocaps_val_4500_captions.json, and beside it the images, in a folder "
    "or an archive",
    source="Download the captions from "
    "https://nocaps.s3.amazonaws.com/nocaps_val_4500_captions.json and each "
    "image from its coco_url",
)
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
