"""Groups of records, the units of an audit: they share a coin, and count once.

Records of one patient, captions of one picture and copies of a photograph resemble one
another: who has seen one knows the others.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from privaudit.core.errors import DatasetError, TooFewRecordsError
from privaudit.datasets.dataset import Dataset, FeatureBank, Texts

CONTENTS, NEAR = "contents", "near-duplicates"
SIDE = 16  # of a thumbnail, in pixels
ALIKE = 0.98  # cosine of two thumbnails' deviations from their means
MOST_COMPARED = 50_000  # records: each is compared with every other
_ROWS = 2048


def group_records(dataset: Dataset, wanted: str) -> Int[np.ndarray, " n"]:
    """Return for each record the position of the first one of its group.

    Args:
        dataset: Its ``groups`` are those of a column that was named.
        wanted: "contents" puts records of one picture, or one text, together, whatever
            is asked or said about it; "near-duplicates" also pictures that look alike
            at a size of 16 x 16, such as copies of another size; else a column.
    """
    if wanted == CONTENTS:
        return first_of(np.array([one.hex() for one in dataset.images.contents]))
    if wanted == NEAR:
        return near_duplicates(dataset)
    assert dataset.groups is not None  # a reader that takes columns has read it
    return first_of(dataset.groups.numpy())


def first_of(names: Shaped[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return for each record the position of the first one of its name."""
    _, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def near_duplicates(dataset: Dataset) -> Int[np.ndarray, " n"]:
    """Return groups of pictures that are linked by pairs that look alike.

    Thumbnails are whole numbers and their sums exact in float64, so that every machine
    finds the same groups: the ledger holds them, and is held against them.
    """
    from scipy.sparse import coo_matrix  # slow to import, as is csgraph
    from scipy.sparse.csgraph import connected_components

    images, count = dataset.images, len(dataset)
    if isinstance(images, FeatureBank | Texts):
        raise DatasetError(
            f"Groups of {NEAR} were requested, and the data set has no pictures. Use "
            f"--groups {CONTENTS}, or a column of its table."
        )
    if count > MOST_COMPARED:
        raise TooFewRecordsError(
            f"Groups of {NEAR} were requested of {count:,} records, and at most "
            f"{MOST_COMPARED:,} are compared with one another. Use --groups {CONTENTS}, "
            "or write groups into a column."
        )
    small = np.stack([thumbnail(images[n]) for n in range(count)])
    norms, pairs = (small**2).sum(axis=1), []
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        scale = np.sqrt(norms[rows, None] * norms)
        alike = small[rows] @ small.T >= ALIKE * scale
        alike &= scale > 0  # all of one colour: nothing to compare
        pairs.append(np.argwhere(alike) + np.array([start, 0]))
    left, right = np.concatenate(pairs).T
    links = coo_matrix((np.ones(len(left), bool), (left, right)), (count, count))
    return first_of(connected_components(links, directed=False)[1])


def thumbnail(
    picture: Shaped[Tensor, "channels height width"],
) -> Float[np.ndarray, " pixels"]:
    """Return a small grey picture as whole numbers around 0.

    Each pixel is the mean over a rectangle, in 255ths, less the mean of all of them,
    times their number.
    """
    levels = picture if picture.dtype == torch.uint8 else (255 * picture).round()
    grey = levels.to(torch.int64).sum(dim=0).numpy()
    sums = np.zeros((grey.shape[0] + 1, grey.shape[1] + 1), np.int64)
    sums[1:, 1:] = grey.cumsum(axis=0).cumsum(axis=1)
    (top, bottom), (left, right) = (_edges(size) for size in grey.shape)
    total = sums[bottom][:, right] - sums[top][:, right]
    total = total - sums[bottom][:, left] + sums[top][:, left]
    area = (bottom - top)[:, None] * (right - left) * len(picture)
    means = (total // area).ravel()
    centred: Float[np.ndarray, " pixels"] = len(means) * means.astype(np.float64)
    return centred - means.sum()


def _edges(size: int) -> tuple[Int[np.ndarray, " side"], Int[np.ndarray, " side"]]:
    """Return where the rows, or columns, of each pixel of a thumbnail begin and end."""
    begin = np.arange(SIDE) * size // SIDE
    return begin, np.maximum(begin + 1, np.arange(1, SIDE + 1) * size // SIDE)
