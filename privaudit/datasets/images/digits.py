"""Digits: scikit-learn's 1,797 real scans of 8 by 8 pixels, and drawn ones in their form.

Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI machine
learning repository 1998, the test part, as shipped with scikit-learn.

Those that nobody wrote are drawn pen strokes, and stand for non-members of another
source. They were drawn once, and the file holds what
``python -m privaudit_tools.pretraining.drawn_digits`` of the repository writes.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from privaudit.core.errors import MissingFileError
from privaudit.core.storage import read_bytes, read_npz
from privaudit.datasets.dataset import DATASETS, Dataset, PixelImages

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@DATASETS.register("digits")
def digits() -> Dataset:
    """Handwritten digits included: 1,797 scans of 8 by 8 pixels.

    Grey levels are in [0, 1], bright ink on dark ground.
    """
    table = np.loadtxt(_shipped(), delimiter=",")
    pixels = torch.from_numpy(table[:, :-1]).to(torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.from_numpy(table[:, -1]).long()
    return Dataset(PixelImages(pixels), labels, NAMES, "a photo of the digit {}.")


def _shipped() -> Path:
    """Return scikit-learn's file; its reader takes a second to import, and pandas."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return file
    raise MissingFileError(
        "The data set digits was requested, and scikit-learn, which ships it as "
        "datasets/data/digits.csv.gz, has no such file here. Install scikit-learn anew."
    )


FILE = Path(__file__).with_name("drawn-digits.npz")
LEVELS = "levels"  # ink in blocks of 4 by 4 points, from 0 to 16


@DATASETS.register("drawn-digits")
def drawn_digits() -> Dataset:
    """Drawn digits, as non-members of another source: 1,000 images of 8 by 8 pixels.

    Grey levels are in [0, 1], bright ink on dark ground.
    """
    levels = torch.from_numpy(read_npz(read_bytes(FILE, "arrays"), FILE.name)[LEVELS])
    labels = torch.arange(len(levels)) % len(NAMES)
    pixels = levels[:, None].to(torch.float32) / 16
    return Dataset(PixelImages(pixels), labels, NAMES, "a photo of the digit {}.")
