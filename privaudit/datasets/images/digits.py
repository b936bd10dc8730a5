"""scikit-learn's handwritten digits: 1,797 real scans of 8 by 8 pixels.

Source: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI machine
learning repository 1998, the test part, as shipped with scikit-learn.
"""

import torch

from privaudit.datasets.dataset import DATASETS, Dataset, PixelImages

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@DATASETS.register("digits")
def digits() -> Dataset:
    """Handwritten digits included: 1,797 scans of 8 by 8 pixels.

    Grey levels are in [0, 1], bright ink on dark ground.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).to(torch.float32).unsqueeze(1) / 16
    labels = torch.from_numpy(bunch.target).long()
    return Dataset(PixelImages(pixels), labels, NAMES, "a photo of the digit {}.")
