"""The real data that may lie beside the repository; skipped where it does not."""

from pathlib import Path

import pytest
import torch

from privaudit.datasets.dataset import FeatureBank
from privaudit.datasets.images.picture_files import PictureFiles
from privaudit.datasets.sources import load_dataset
from tests.places import SHARED

SUPPLIED = SHARED / "data"


def supplied(name: str) -> Path:
    if not (SUPPLIED / name).is_dir():
        pytest.skip(f"needs reference data, not in the repository: {name}")
    return SUPPLIED / name


def test_caltechs_split_finds_its_pictures_in_the_archive_beside_it() -> None:
    dataset = load_dataset("caltech101", supplied("caltech101"))
    assert dataset.split is not None
    assert torch.bincount(dataset.split).tolist() == [4128, 1649, 2465]
    assert len(dataset.class_names) == 100
    assert dataset.class_names[87] == "stop sign"
    assert isinstance(dataset.images, PictureFiles)
    assert min(dataset.images[0].shape[1:]) == 96


def test_caltechs_bank_has_the_same_records_in_another_order() -> None:
    bank = load_dataset("feature-bank", supplied("caltech101"))
    pictures = load_dataset("caltech101", supplied("caltech101"))
    assert bank.class_names == pictures.class_names
    assert bank.split is not None
    assert pictures.split is not None
    for one, other in ((bank, pictures), (pictures, bank)):
        assert one.split is not None
        assert torch.equal(
            torch.bincount(one.labels + 100 * one.split),
            torch.bincount(other.labels + 100 * other.split),  # type: ignore[operator]
        )
    assert isinstance(bank.images, FeatureBank)
    assert bank.images.embeddings.shape == (8242, 1024)


def test_pacs_has_four_domains_in_pictures_and_in_its_bank() -> None:
    pictures = load_dataset("pacs", supplied("pacs"))
    bank = load_dataset("feature-bank", supplied("pacs"))
    assert pictures.domain_names == ("art painting", "cartoon", "photo", "sketch")
    assert sorted(bank.domain_names) == list(pictures.domain_names)
    assert (len(pictures), len(bank)) == (2780, 9991)
    assert set(bank.class_names) == set(pictures.class_names)


@pytest.mark.slow
def test_cifar10_is_read_from_a_compressed_archive_of_pictures() -> None:
    dataset = load_dataset("cifar10", supplied("cifar10"))
    assert dataset.split is not None
    assert torch.bincount(dataset.split).tolist() == [50_000, 0, 10_000]
    assert torch.bincount(dataset.labels).tolist() == [6000] * 10
    assert dataset.class_names[:2] == ("airplane", "automobile")
    assert dataset.images[0].shape == (3, 32, 32)  # type: ignore[index]
