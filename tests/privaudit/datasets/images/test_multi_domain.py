from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN
from privaudit.datasets.images.multi_domain import read_multi_domain
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import Bring, tree, write_folder

PLACES = ("photo/dog", "photo/cat", "art_painting/dog", "art_painting/cat")


@pytest.mark.parametrize("front", ["", "pacs/data/"])
def test_the_first_folder_is_the_domain_and_the_second_the_class(
    front: str, bring: Bring
) -> None:
    dataset = read_multi_domain(bring(tree(*(front + place for place in PLACES))))
    assert dataset.domain_names == ("art painting", "photo")
    assert dataset.class_names == ("cat", "dog")
    assert dataset.domains is not None
    assert dataset.domains.tolist() == [0] * 6 + [1] * 6
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert dataset.split is None


def test_the_lists_of_domainnet_say_what_is_for_tests(tmp_path: Path) -> None:
    files = tree("clipart/dog", "clipart/cat", "real/dog", "real/cat")
    lists = {
        f"{domain}_{part}.txt": "".join(
            f"{domain}/{name}/{number}.png {label}\n"
            for label, name in enumerate(("cat", "dog"))
        ).encode()
        for domain in ("clipart", "real")
        for part, number in (("train", 0), ("test", 2))
    }
    dataset = load_dataset("domainnet", write_folder(tmp_path, {**files, **lists}))
    assert len(dataset) == 8
    assert dataset.split is not None
    assert dataset.split.tolist() == [TRAIN, TEST_SPLIT] * 4


def test_a_listed_picture_that_is_missing_is_named(tmp_path: Path) -> None:
    lists = {
        f"{domain}_{part}.txt": b"photo/dog/9.png 1\n"
        for domain in ("photo", "art_painting")
        for part in ("train", "test")
    }
    write_folder(tmp_path, {**tree(*PLACES), **lists})
    with pytest.raises(ConfigError, match=r"photo/dog/9\.png stands in a list"):
        read_multi_domain(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (tree("photo/dog", "photo/cat"), "one domain only, 'photo'"),
        (tree("photo/dog", "art/dog"), "holds 1 class: dog"),
        ({**tree(*PLACES), "photo/0.png": b""}, r"photo/0\.png in .* in 1 folders"),
    ],
)
def test_folders_that_are_no_domains_are_one_clear_line(
    files: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    path = write_folder(tmp_path / "place", files)
    with pytest.raises(ConfigError, match=message) as caught:
        load_dataset("multi-domain", path)
    assert str(path) in str(caught.value)


def test_office_homes_download_is_read_as_it_is(bring: Bring) -> None:
    places = [
        f"OfficeHomeDataset_10072016/{domain}/{name}"
        for domain in ("Art", "Clipart", "Product", "Real World")
        for name in ("Alarm_Clock", "Backpack")
    ]
    files = {**tree(*places), "OfficeHomeDataset_10072016/ImageInfo.csv": b"x"}
    dataset = load_dataset("office-home", bring(files))
    assert dataset.domain_names == ("Art", "Clipart", "Product", "Real World")
    assert dataset.class_names == ("Alarm Clock", "Backpack")
    assert len(dataset) == 24
