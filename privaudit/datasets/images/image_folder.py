"""Pictures in a folder for each class, or for each domain, such as photos, and class."""

from pathlib import Path

import torch

from privaudit.core.errors import DatasetError
from privaudit.core.storage import read_bytes
from privaudit.datasets.dataset import DATASETS, TEST_SPLIT, TRAIN, Dataset
from privaudit.datasets.files.archives import Store
from privaudit.datasets.images.picture_files import (
    PictureFiles,
    levels_of,
    number,
    require_classes,
    store_in,
    take_split,
)
from privaudit.datasets.sources import OnDisk, on_disk


@on_disk(
    "image-folder",
    summary="Your images, in a folder for each class.",
    needs="CLASS/*.jpg, or the same below train/, val/ and test/, in a folder or "
    "a .tar, .tar.gz, .tar.xz or .zip",
    source="Sort your images so",
)
def read_image_folder(path: Path) -> Dataset:
    """Read CLASS/picture.jpg, or SPLIT/CLASS/picture.jpg with train, val and test."""
    return sort_by_class(store_in(path))


def sort_by_class(store: Store) -> Dataset:
    """Return the pictures of a store, each in the class that its folder names."""
    split, levels = take_split(levels_of(store, wanted=1))
    labels, names = number([parts[0] for parts in levels])
    require_classes(labels, names, store.path)
    return Dataset(PictureFiles(store, store.names), labels, names, split=split)


NEEDS = "DOMAIN/CLASS/*.jpg, in a folder or a .tar, .tar.gz, .tar.xz or .zip"


def read_multi_domain(path: Path) -> Dataset:
    """Read DOMAIN/CLASS/picture.jpg.

    Where each domain has its DOMAIN_train.txt and DOMAIN_test.txt beside it, as in
    DomainNet, these say which pictures are for tests, and others do not count.
    """
    store = store_in(path)
    levels, names = levels_of(store, wanted=2), store.names
    split = _listed_split(store, sorted({parts[0] for parts in levels}))
    if split:
        listed = [index for index, name in enumerate(names) if name in split]
        levels, names = [levels[i] for i in listed], [names[i] for i in listed]
    domains, domain_names = number([parts[0] for parts in levels])
    if len(domain_names) < 2:
        raise DatasetError(
            f"{store.path} holds one domain only, {domain_names[0]!r}. Give several, "
            "or use image-folder."
        )
    labels, class_names = number([parts[1] for parts in levels])
    require_classes(labels, class_names, store.path)
    return Dataset(
        PictureFiles(store, names), labels, class_names,
        split=torch.tensor([split[name] for name in names]) if split else None,
        domains=domains, domain_names=domain_names,
    )  # fmt: skip


def _listed_split(store: Store, domains: list[str]) -> dict[str, int]:
    """Return the split of each listed picture; nothing where a list is missing."""
    splits: dict[str, int] = {}
    for domain in domains:
        for part, kind in (("train", TRAIN), ("test", TEST_SPLIT)):
            path = store.path / f"{domain}_{part}.txt"
            if not path.is_file():
                return {}
            lines = read_bytes(path).decode().splitlines()
            splits |= {line.rsplit(" ", 1)[0]: kind for line in lines if line.strip()}
    gone = next((name for name in splits if name not in store), None)
    if gone is not None:
        raise DatasetError(
            f"{gone} stands in a list in {store.path}, and is not there. Put it there, "
            "or remove the lists to do without a split."
        )
    return splits


KNOWN_DOMAINS = {
    "multi-domain": (
        "Your images, in a folder for each domain and class.",
        "Sort your images so",
        (),
    ),
    "domainnet": (
        "DomainNet: 345 classes in 6 domains (Peng et al. 2019).",
        "Download the domains and their lists from https://ai.bu.edu/M3SDA/ (the "
        "cleaned version) and extract them into one folder",
        ("DomainNet",),
    ),
    "office-caltech10": (
        "Office-Caltech10: 10 classes in 4 domains (Gong et al. 2012).",
        "Download its pictures (Office-31 and Caltech-256, 10 classes in common) as "
        "listed at https://github.com/jindongwang/transferlearning/tree/master/data",
        ("office_caltech_10", "OfficeCaltech10"),
    ),
    "office-home": (
        "Office-Home: 65 classes in 4 domains (Venkateswara et al. 2017).",
        "Download OfficeHomeDataset_10072016.zip as described at "
        "https://www.hemanthdv.org/officeHomeDataset.html",
        ("OfficeHome", "office_home", "OfficeHomeDataset_10072016"),
    ),
    "pacs": (
        "PACS: 7 classes in 4 domains (Li et al. 2017).",
        "Download the pictures as described at https://domaingeneralization.github.io/",
        ("PACS",),
    ),
}
for _name, (_summary, _source, _folders) in KNOWN_DOMAINS.items():
    DATASETS.register(_name)(
        OnDisk(_summary, NEEDS, _source, read_multi_domain, _folders)
    )
