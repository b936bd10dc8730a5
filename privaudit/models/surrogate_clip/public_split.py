"""Which records a surrogate may see."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION, Dataset

_TEST_SEED, _TEST_RECORDS = 0, 5000


@dataclass(frozen=True)
class PublicRecords:
    """The records that a surrogate sees, which no client may own afterwards."""

    split: str | None
    indices: Int[Tensor, " n"]


def validation_records(dataset: Dataset) -> PublicRecords:
    """Return the validation split."""
    found = _of_split(dataset, VALIDATION)
    if not len(found):
        raise ConfigError(
            "The validation split was requested, but this data set has none. Make a "
            "share of its training records public instead: --share 0.2."
        )
    return PublicRecords("validation", found)


def drawn_records(dataset: Dataset, share: float, seed: int) -> PublicRecords:
    """Draw a share of the training records."""
    everything = torch.arange(len(dataset))
    among = everything if dataset.split is None else _of_split(dataset, TRAIN)
    count = round(share * len(among)) if 0 < share < 1 else 0
    if not count:
        raise ConfigError(
            f"A share of {share:g} of {len(among)} training records cannot be public. "
            "Choose one above 0 and below 1 that makes at least one record."
        )
    order = torch.randperm(len(among), generator=torch.Generator().manual_seed(seed))
    return PublicRecords(None, among[order[:count]].sort().values)


def unseen_records(dataset: Dataset, public: PublicRecords) -> Int[Tensor, " n"]:
    """Return the test split, or at most 5,000 of all records that are not public."""
    found = _of_split(dataset, TEST_SPLIT)
    if not len(found):
        unseen = torch.ones(len(dataset), dtype=torch.bool)
        unseen[public.indices] = False
        found = unseen.nonzero()[:, 0]
    order = torch.randperm(
        len(found), generator=torch.Generator().manual_seed(_TEST_SEED)
    )
    return found[order[:_TEST_RECORDS]].sort().values


def _of_split(dataset: Dataset, split: int) -> Int[Tensor, " n"]:
    if dataset.split is None:
        return torch.empty(0, dtype=torch.long)
    return (dataset.split == split).nonzero()[:, 0]
