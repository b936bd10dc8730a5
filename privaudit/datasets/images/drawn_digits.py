"""Digits that nobody wrote: drawn pen strokes, in the form of ``digits``.

They stand for non-members of another source. Classes, names and form are those of
:mod:`privaudit.datasets.images.digits`. They were drawn once, and the file holds what
``python -m privaudit_tools.pretraining.drawn_digits`` of the repository writes.
"""

from pathlib import Path

import torch

from privaudit.core.arrays import read_npz
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import DATASETS, Dataset, PixelImages
from privaudit.datasets.images.digits import NAMES

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
