"""Records that belong together: by content, by looks, or by a column."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.core.errors import DatasetError
from privaudit.core.seeds import Seeds
from privaudit.datasets.dataset import Dataset, PixelImages
from privaudit.datasets.groups import group_records
from privaudit.datasets.partition import Dirichlet
from privaudit.datasets.split import SplitSizes, split_records
from privaudit.federated.runs.ledger import Ledger
from tests.small_records import text_data

COUNT = 30


def pictures(size: int = 24) -> torch.Tensor:
    """Draw blobs of colour that look like nothing else."""
    small = torch.rand(COUNT, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    large = torch.nn.functional.interpolate(small, size, mode="bilinear")
    return (255 * large).round().to(torch.uint8)


def data(pixels: torch.Tensor) -> Dataset:
    return Dataset(PixelImages(pixels), torch.arange(len(pixels)) % 3, ("a", "b", "c"))


def test_captions_of_one_picture_are_one_group() -> None:
    """Rows 30 to 59 show the pictures of rows 0 to 29 again, with other classes."""
    found = group_records(data(pictures().repeat(2, 1, 1, 1)), "contents")
    assert found.tolist() == [*range(COUNT), *range(COUNT)]


def test_texts_are_grouped_by_what_they_say() -> None:
    texts = text_data(6)
    assert group_records(texts, "contents").tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DatasetError, match="no pictures"):
        group_records(texts, "near-duplicates")


def test_copies_that_differ_a_little_are_near_duplicates() -> None:
    """A copy is brighter, or noisy, or of whole numbers in place of shares."""
    plain = pictures()
    noise = torch.randint(
        -6, 7, plain.shape, generator=torch.Generator().manual_seed(2)
    )
    noisy = (plain.int() + noise).clamp(0, 255).to(torch.uint8)
    brighter = (plain.float() * 0.8 + 30).round().to(torch.uint8)
    found = group_records(data(torch.cat([plain, noisy, brighter])), "near-duplicates")
    assert found.tolist() == 3 * [*range(COUNT)]
    as_shares = group_records(
        data(torch.cat([plain / 255, noisy / 255])), "near-duplicates"
    )
    assert as_shares.tolist() == 2 * [*range(COUNT)]
    assert group_records(data(plain), "contents").tolist() == [*range(COUNT)]


def test_pictures_of_one_colour_are_not_alike() -> None:
    flat = torch.arange(4, dtype=torch.uint8).view(-1, 1, 1, 1).expand(4, 1, 8, 8) * 60
    assert group_records(data(flat), "near-duplicates").tolist() == [0, 1, 2, 3]


def test_a_group_is_one_clients_and_has_one_coin() -> None:
    rng = np.random.default_rng(0)
    names = rng.integers(0, 150, 600)
    group = group_records(
        replace(data(torch.zeros(600, 1, 2, 2)), groups=torch.from_numpy(names)), "ward"
    )
    labels = names % 5
    assigned = split_records(
        labels, Dirichlet(10.0), SplitSizes(), clients=3, seeds=Seeds(0), group=group
    )
    ledger = Ledger.toss(assigned, Seeds(0))
    assert ledger.fits(assigned)
    for name in range(150):
        rows = names == name
        assert len(set(assigned.owner[rows])) <= 1
        assert len(set(ledger.is_member[rows])) <= 1
    candidates = ledger.owner >= 0
    firsts = candidates & (group == np.arange(600))
    assert 0.3 < ledger.is_member[firsts].mean() < 0.7
    assert len(ledger.units(np.flatnonzero(candidates)).first) == firsts.sum()


def test_a_group_of_two_owners_is_refused() -> None:
    with pytest.raises(DatasetError, match="Records 0 and 1 are of one group"):
        split_records(
            np.zeros(3, int), Dirichlet(1.0), SplitSizes(), clients=1, seeds=Seeds(0),
            domains=np.array([0, 1, 1]), group=np.array([0, 0, 2]),
        )  # fmt: skip
