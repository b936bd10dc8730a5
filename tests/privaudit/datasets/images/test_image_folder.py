import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from privaudit.core.errors import ConfigError, LimitError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.images.image_folder import read_image_folder, read_multi_domain
from privaudit.datasets.images.picture_files import PictureFiles
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import (
    Bring,
    assert_refused,
    greys,
    parts_of,
    picture,
    tree,
    write_archive,
    write_folder,
)


def test_folders_are_classes_in_the_order_of_the_alphabet(bring: Bring) -> None:
    dataset = read_image_folder(bring(tree("zebra", "ant_lion")))
    assert dataset.class_names == ("ant lion", "zebra")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.split is None
    assert greys(dataset) == [3, 4, 5, 0, 1, 2]


def test_a_first_level_of_parts_is_the_split(bring: Bring) -> None:
    dataset = read_image_folder(bring(tree("Train/a", "Train/b", "val/a", "test/b")))
    assert dataset.class_names == ("a", "b")
    by_part = {
        part: dataset.labels[dataset.split == part].unique().tolist()
        for part in (TRAIN, VALIDATION, TEST_SPLIT)
    }
    assert by_part == {TRAIN: [0, 1], VALIDATION: [0], TEST_SPLIT: [1]}


def test_folders_in_front_of_all_pictures_do_not_count(bring: Bring) -> None:
    dataset = read_image_folder(bring(tree("my/pets/train/cat", "my/pets/train/dog")))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.split is None


def test_folder_and_archives_have_one_hash_and_another_picture_changes_it(
    tmp_path: Path,
) -> None:
    files = tree("a", "b")
    places = [write_archive(tmp_path / kind, files) for kind in ("x.tar", "x.zip")]
    places.append(write_folder(tmp_path / "same", files))
    assert len({read_image_folder(place).hash for place in places}) == 1
    other = write_folder(tmp_path / "other", files | {"a/1.png": picture(99)})
    assert read_image_folder(other).hash != read_image_folder(places[0]).hash


def test_a_picture_is_rgb_bytes_of_its_own_size_whatever_its_kind(
    tmp_path: Path,
) -> None:
    files = tree("a")
    for mode in ("L", "RGBA", "P", "1", "CMYK"):
        buffer = io.BytesIO()
        Image.new(mode, (5, 7)).save(buffer, "tiff" if mode == "CMYK" else "png")
        files[f"b/{mode}.{'tif' if mode == 'CMYK' else 'png'}"] = buffer.getvalue()
    images = read_image_folder(write_folder(tmp_path, files)).images
    assert isinstance(images, PictureFiles)
    assert images[0].shape == (3, 4, 6)
    for index in range(3, 8):
        assert images[index].shape == (3, 7, 5)
        assert images[index].dtype == torch.uint8


@pytest.mark.parametrize("broken", [b"", b"no picture", picture(kind="jpeg")[:-200]])
def test_a_broken_picture_is_named(broken: bytes, bring: Bring) -> None:
    images = read_image_folder(bring({**tree("a", "b"), "b/9.jpg": broken})).images
    assert isinstance(images, PictureFiles)
    with pytest.raises(ConfigError, match=r"b/9\.jpg in .*home.* is not a picture"):
        images[6]


def test_grey_levels_beyond_bytes_are_refused_and_not_made_white(bring: Bring) -> None:
    deep = io.BytesIO()
    levels = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2000
    Image.fromarray(levels).save(deep, "png")
    files = {**tree("a", "b"), "b/9.png": deep.getvalue()}
    images = read_image_folder(bring(files)).images
    assert isinstance(images, PictureFiles)
    with pytest.raises(ConfigError, match=r"b/9\.png .* I;16, of more than 8 bits"):
        images[6]


def test_a_picture_that_goes_away_is_named(tmp_path: Path) -> None:
    images = read_image_folder(write_folder(tmp_path, tree("a", "b"))).images
    (tmp_path / "a" / "0.png").unlink()
    with pytest.raises(MissingFileError, match=r"no a/0\.png in"):
        images[0]  # type: ignore[index]


def test_a_class_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, {**tree("a", "b"), "c/notes.txt": b""})
    with pytest.raises(ConfigError, match=r"The folder c in .* holds no picture"):
        load_dataset("image-folder", tmp_path)


PLACES = ("photo/dog", "photo/cat", "art_painting/dog", "art_painting/cat")
DOMAINS = "multi-domain"


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("image-folder", {"a/notes.txt": b""}, "holds no picture"),
        ("image-folder", tree("a"), "holds 1 class: a"),
        (
            "image-folder",
            {**tree("a", "b"), "s.png": b""},
            r"s\.png in .* lies in 0 fold",
        ),
        ("image-folder", tree("a_b", "a b"), r"both called 'a b'"),
        ("image-folder", tree("a", "_"), r"The name of class 0 is blank"),
        (DOMAINS, tree("photo/dog", "photo/cat"), "one domain only, 'photo'"),
        (DOMAINS, tree("photo/dog", "art/dog"), "holds 1 class: dog"),
        (
            DOMAINS,
            {**tree(*PLACES), "photo/0.png": b""},
            r"photo/0\.png in .* in 1 fold",
        ),
    ],
)
def test_folders_that_are_no_data_set_are_one_clear_line(
    name: str, files: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    assert_refused(name, write_folder(tmp_path / "place", files), message)


def test_several_archives_in_a_folder_are_not_guessed_from(tmp_path: Path) -> None:
    for kind in ("x.tar", "y.zip"):
        write_archive(tmp_path / kind, tree("a", "b"))
    with pytest.raises(ConfigError, match=r"holds 2 archives: x\.tar, y\.zip"):
        read_image_folder(tmp_path)
    assert len(read_image_folder(tmp_path / "y.zip")) == 6


def test_the_digest_is_that_of_the_files_by_hand(tmp_path: Path) -> None:
    files = tree("a", "b", each=1)
    images = read_image_folder(write_folder(tmp_path, files)).images
    hashes = [hashlib.sha256(files[name]).digest() for name in ("a/0.png", "b/0.png")]
    assert images.digest == hashlib.sha256(b"".join(hashes)).hexdigest()


def test_many_classes_are_refused_before_their_texts_take_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class takes 120 bytes of a file, and 0.6 MiB of memory as a text."""
    content = picture(1)
    files = {f"class {n}/0.png": content for n in range(2001)}
    place = write_archive(tmp_path / "many.zip", files)
    with pytest.raises(
        LimitError, match=r"2,001 classes, .* PRIVAUDIT_MAX_CLASSES=2001"
    ):
        load_dataset("image-folder", place)
    chosen = load_dataset("image-folder", place, classes="class 7,class 2000")
    assert chosen.class_names == ("class 2000", "class 7")
    monkeypatch.setenv("PRIVAUDIT_MAX_CLASSES", "2001")
    assert len(load_dataset("image-folder", place).class_names) == 2001


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
    assert parts_of(dataset) == [TRAIN, TEST_SPLIT] * 4


def test_a_listed_picture_that_is_missing_is_named(tmp_path: Path) -> None:
    lists = {
        f"{domain}_{part}.txt": b"photo/dog/9.png 1\n"
        for domain in ("photo", "art_painting")
        for part in ("train", "test")
    }
    write_folder(tmp_path, {**tree(*PLACES), **lists})
    with pytest.raises(ConfigError, match=r"photo/dog/9\.png stands in a list"):
        read_multi_domain(tmp_path)


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
