"""Pictures and a table that says what is on them, such as CheXpert's X-rays.

Source: Irvin et al., "CheXpert: a large chest radiograph dataset with uncertainty
labels and expert comparison", AAAI 2019. Its pictures, and those of MIMIC-CXR, are only
given to people who agreed to their terms: nothing is downloaded here.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from privaudit.datasets.dataset import Dataset
from privaudit.datasets.images.picture_files import pictures_of
from privaudit.datasets.sources import on_disk
from privaudit.datasets.text.labelled_rows import COLUMNS_FILE, read_labelled

CHEXPERT = {
    "image": "Path",
    "target": "Pleural Effusion",
    "template": "a chest X-ray with {}.",
}


def read_image_table(path: Path, usual: Mapping[str, Any]) -> Dataset:
    """Read a .csv with a row for each picture, and the pictures beside it.

    Grey pictures are read as RGB of three equal channels. ``usual`` are the columns where
    ``columns.json`` names no others.
    """
    labelled = read_labelled(path, usual, "image")
    labels, names = labelled.numbered(path)
    folder = path if path.is_dir() else path.parent
    files = [file for (file,) in labelled.contents]
    return Dataset(
        pictures_of(folder, _below(folder, files)), labels, names,
        labelled.columns.template or "a photo of a {}.",
        labelled.split, *labelled.domains,
    )  # fmt: skip


def _below(folder: Path, files: list[str]) -> list[str]:
    """Take off a first folder that all names share and that is not there.

    CheXpert's names begin with its own folder's.
    """
    first, _, _ = files[0].partition("/")
    shared = all(file.startswith(f"{first}/") for file in files)
    inside = [file.removeprefix(f"{first}/") for file in files]
    if not first or not shared or (folder / first).exists():
        return files
    return inside if (folder / inside[0]).is_file() else files


_TABLE = (
    "one .csv, or train.csv with valid.csv or test.csv, and the pictures beside it; "
    f"in {COLUMNS_FILE}"
)
on_disk(
    "image-table",
    summary="Your images, with a table that says what is on them.",
    needs=_TABLE + ', what the columns are, such as {"image": "path", "label": '
    '"finding"}',
    source="Write such a table",
)(partial(read_image_table, usual={"label": "label"}))
on_disk(
    "chexpert",
    summary="CheXpert: X-rays of the chest; is there a pleural effusion?",
    needs=_TABLE + ', optionally, other columns than {"target": "Pleural Effusion", '
    '"uncertain": "ignore"}',
    source="Access is restricted, and nothing is downloaded: ask for "
    "CheXpert-v1.0-small at https://stanfordmlgroup.github.io/competitions/chexpert/",
    folders=("CheXpert-v1.0-small", "CheXpert-v1.0"),
)(partial(read_image_table, usual=CHEXPERT))
