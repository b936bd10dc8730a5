import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.cli.list import names_of
from privaudit.core.errors import (
    ConfigError,
    DatasetError,
    MissingFileError,
    UnknownNameError,
)
from privaudit.datasets.dataset import DATASETS, TEST_SPLIT, TRAIN, Dataset, FeatureBank
from privaudit.datasets.images.picture_files import PictureFiles
from privaudit.datasets.sources import (
    KNOWN_CLASSES,
    OnDisk,
    load_dataset,
    named_classes,
    only_classes,
    places,
)
from privaudit.runs.config import make_config
from privaudit.runs.training import train
from tests.places import SHARED
from tests.privaudit.datasets.conftest import tree, write_folder

FILES = sorted(
    name for name in DATASETS.names() if isinstance(DATASETS.find(name), OnDisk)
)


def test_the_environment_comes_before_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "here"))
    entry = DATASETS.find("pacs")
    assert isinstance(entry, OnDisk)
    home = tmp_path / "home" / ".cache" / "privaudit" / "data"
    here = tmp_path / "here"
    assert list(places("pacs", entry)) == [
        here / "pacs", here / "PACS", home / "pacs", home / "PACS",
    ]  # fmt: skip
    write_folder(home / "image-folder", tree("at", "home"))
    assert load_dataset("image-folder").class_names == ("at", "home")
    write_folder(here / "image-folder", tree("in", "here"))
    assert load_dataset("image-folder").class_names == ("here", "in")
    named = write_folder(tmp_path / "named", tree("said", "so"))
    assert load_dataset("image-folder", named).class_names == ("said", "so")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_data_set_is_one_line_that_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIVAUDIT_DATA", raising=False)
    with pytest.raises(MissingFileError) as caught:
        load_dataset(name)
    text = str(caught.value)
    assert f"put it into {tmp_path}/.cache/privaudit/data/{name}, or" in text
    assert "\n" not in text
    assert ".." not in text
    with pytest.raises(MissingFileError, match=r"gone.*, and name its place with"):
        load_dataset(name, tmp_path / "gone")


OWN = [name for name in DATASETS.names() if not DATASETS.package_of(name)]


@pytest.mark.parametrize("name", OWN)
def test_a_data_set_is_found_by_importing_its_own_module(name: str) -> None:
    (module,) = DATASETS._modules_of(name)
    assert module in sys.modules
    entry: Any = DATASETS.find(name)
    reader = getattr(entry, "read", entry)
    assert getattr(reader, "func", reader).__module__.startswith(module)


@pytest.mark.parametrize("name", FILES)
def test_an_empty_folder_is_one_clear_line(name: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, MissingFileError), match=str(tmp_path)):
        load_dataset(name, tmp_path)


def test_a_path_for_what_comes_with_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'digits' is part of the package"):
        load_dataset("digits", tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'digits'"):
        load_dataset("digit")


def test_the_list_says_what_is_needed_where_and_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "caltech-101").mkdir(parents=True)
    found = {name: lines for name, *lines in names_of("datasets")}
    assert len(found["digits"]) == 1
    assert found["caltech101"][3] == f"found: {tmp_path / 'data' / 'caltech-101'}"
    summary, needs, looked, there = found["eurosat"]
    assert summary.startswith("EuroSAT")
    assert "split_zhou_EuroSAT.json" in needs
    assert str(tmp_path / "data" / "eurosat") in looked
    assert there.startswith("not there. Download the images from https://")


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


DOMAINNET = ("clipart", "real")
OTHERS = ("aircraft_carrier", "zigzag")


def domainnet(path: Path) -> Path:
    """A miniature of DomainNet with its lists: the last picture of each is a test's."""
    names = [name.replace(" ", "_") for name in KNOWN_CLASSES["domainnet-10"]]
    folders = [f"{domain}/{c}" for domain in DOMAINNET for c in (*names, *OTHERS)]
    write_folder(path, tree(*folders, each=4))
    for domain in DOMAINNET:
        lines: dict[str, list[str]] = {"train": [], "test": []}
        for label, c in enumerate((*names, *OTHERS)):
            for number in range(4):
                part = "test" if number == 3 else "train"
                lines[part].append(f"{domain}/{c}/{number}.png {label}")
        for part, listed in lines.items():
            (path / f"{domain}_{part}.txt").write_text("\n".join(listed))
    return path


def test_ten_classes_of_domainnet_keep_their_official_split(tmp_path: Path) -> None:
    path = domainnet(tmp_path)
    everything = load_dataset("domainnet", path)
    ten = load_dataset(
        "domainnet", path, classes=",".join(KNOWN_CLASSES["domainnet-10"])
    )
    assert len(everything.class_names) == 12
    assert ten.class_names == KNOWN_CLASSES["domainnet-10"]
    assert ten.split is not None
    assert ten.domains is not None
    assert torch.bincount(ten.split).tolist() == [60, 0, 20]
    assert torch.bincount(ten.labels).tolist() == [8] * 10
    assert torch.bincount(ten.domains).tolist() == [40, 40]
    kept = [n for n, label in enumerate(everything.labels.tolist())
            if everything.class_names[label] in ten.class_names]  # fmt: skip
    for place, n in enumerate(kept):
        label, other = int(ten.labels[place]), int(everything.labels[n])
        assert ten.class_names[label] == everything.class_names[other]
        assert torch.equal(ten.pictures[place], everything.pictures[n])  # type: ignore[index]
        assert everything.contents[n].equal(ten.contents[place])


def test_it_is_the_data_set_in_which_there_are_no_others(tmp_path: Path) -> None:
    folders = tree("train/a", "train/b", "test/a", "test/b", "train/c", "test/c")
    path = write_folder(tmp_path / "all", folders)
    two = write_folder(
        tmp_path / "two", {n: f for n, f in folders.items() if "/c/" not in n}
    )
    chosen = load_dataset("image-folder", path, classes="b,A")
    assert chosen.class_names == ("a", "b")
    assert chosen.hash == load_dataset("image-folder", two).hash
    assert chosen.split is not None
    assert set(chosen.split.tolist()) == {TRAIN, TEST_SPLIT}


def test_pixels_embeddings_and_texts_are_chosen_alike(tmp_path: Path) -> None:
    digits = load_dataset("digits")
    some = only_classes(digits, "Seven,one")
    names = [digits.class_names[int(n)] for n in digits.labels]
    kept = [n for n, name in enumerate(names) if name in ("one", "seven")]
    assert torch.equal(some.labels, (digits.labels[kept] == 7).long())
    bank = tmp_path / "x.npz"
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.savez(
        bank, embeddings=rows, labels=[0, 1, 2, 0, 1, 2], class_names=["a", "b_b", "c"]
    )
    found = load_dataset("feature-bank", bank, classes="c,b b")
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.images.embeddings[:, 0].tolist() == [2, 4, 8, 10]  # type: ignore[union-attr]
    write_folder(
        tmp_path / "texts", {"all.csv": b"text,label\nx,a\ny,b\nz,c\nx,a\ny,b\nz,c\n"}
    )
    texts = load_dataset("text-table", tmp_path / "texts", classes="a,c")
    assert texts.images.texts == (("x",), ("z",), ("x",), ("z",))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("one", "two or more different ones"),
        ("one,ONE", "two or more different ones"),
        ("one,tow", r"1 of the 2 .* such as 'tow'\. Did you mean 'two'"),
    ],
)
def test_other_classes_are_one_clear_line(classes: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        only_classes(load_dataset("digits"), classes)


def test_a_choice_is_names_a_file_or_a_name(tmp_path: Path) -> None:
    file = tmp_path / "two.txt"
    file.write_text("bird\n\n ice_cream \n")
    assert named_classes(str(file)) == "bird,ice cream"
    assert named_classes("bird, ice_cream") == "bird,ice cream"
    assert len(named_classes("office-caltech-10").split(",")) == 10
    names = ("Turkey", "turkey", "tench, Tinca tinca")
    bank = Dataset(FeatureBank(torch.eye(3)), torch.arange(3), names)
    file.write_text("tench, Tinca tinca\nturkey\n")
    chosen = named_classes(named_classes(str(file)))
    assert only_classes(bank, chosen).class_names == names[1:]
    with pytest.raises(DatasetError, match="'Turkey' and 'turkey' are two classes"):
        only_classes(bank, "TURKEY,turkey")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no text"):
        named_classes(str(file))


def test_a_run_records_the_names_and_trains_on_them_alone(tmp_path: Path) -> None:
    file = tmp_path / "two.txt"
    file.write_text("three\neight\n")
    run = train(
        "zero-shot", classes=str(file), clients=2, seed=0, folder=tmp_path, rounds=1
    )
    assert run.config.classes == "three,eight"
    assert run.population.dataset.class_names == ("three", "eight")
    whole = make_config("zero-shot", clients=2, seed=0, rounds=1)
    assert whole.short_hash != run.config.short_hash
    assert "classes" not in whole.identity
