"""Which records a surrogate may see."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION, Dataset

_TEST_SEED = 0


@dataclass(frozen=True)
class PublicRecords:
    """The records that a model is made from, which no client may own afterwards.

    Attributes:
        split: "validation", or None where a share of the others was drawn.
        indices: In the data set, rising.
    """

    split: str | None
    indices: Int[Tensor, " n"]


def validation_records(dataset: Dataset) -> PublicRecords:
    """Return the validation split.

    Raises:
        ConfigError: There is none.
    """
    indices = _of_split(dataset, VALIDATION)
    if not len(indices):
        raise ConfigError(
            "The validation split was requested, but this data set has none. Make a "
            "share of its training records public instead: --share 0.2."
        )
    return PublicRecords("validation", indices)


def drawn_records(dataset: Dataset, share: float, seed: int) -> PublicRecords:
    """Draw a share of the training records.

    Args:
        dataset: Without splits, all records are training records.
        share: Above 0 and below 1.
        seed: Of the draw.

    Raises:
        ConfigError: The share is not between 0 and 1, or makes no record public, or all
            where none are for tests.
    """
    everything = torch.arange(len(dataset))
    among = everything if dataset.split is None else _of_split(dataset, TRAIN)
    count = round(share * len(among)) if 0 < share < 1 else 0
    if not 0 < count < len(among) + len(_of_split(dataset, TEST_SPLIT)):
        raise ConfigError(
            f"A share of {share:g} of {len(among)} training records cannot be public. "
            "Choose one above 0 and below 1 that makes at least one record, and leaves "
            "one to measure on."
        )
    order = torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))
    return PublicRecords(None, among[order[:count]].sort().values)


def contents(dataset: Dataset, public: PublicRecords) -> tuple[str, ...]:
    """Return the SHA-256 of each public record, in hexadecimal."""
    rows = dataset.contents[public.indices].numpy()
    return tuple(row.tobytes().hex() for row in rows)


def unseen_records(
    dataset: Dataset, public: PublicRecords, most: int = 5000
) -> Int[Tensor, " n"]:
    """Draw at most so many of the test split, or else of all that is not public."""
    indices = _of_split(dataset, TEST_SPLIT)
    if not len(indices):
        unseen = torch.ones(len(dataset), dtype=torch.bool)
        unseen[public.indices] = False
        indices = unseen.nonzero()[:, 0]
    order = torch.randperm(
        len(indices), generator=torch.Generator().manual_seed(_TEST_SEED)
    )
    return indices[order[:most]].sort().values


def _of_split(dataset: Dataset, split: int) -> Int[Tensor, " n"]:
    if dataset.split is None:
        return torch.empty(0, dtype=torch.long)
    return (dataset.split == split).nonzero()[:, 0]
