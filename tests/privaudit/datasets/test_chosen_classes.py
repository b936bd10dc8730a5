from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit.core.errors import ConfigError, DatasetError
from privaudit.datasets.chosen_classes import (
    KNOWN_CLASSES,
    named_classes,
    only_classes,
)
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN
from privaudit.datasets.sources import load_dataset
from privaudit.federated.runs.config import make_config
from privaudit.federated.runs.training import train
from tests.privaudit.datasets.conftest import tree, write_folder

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
        bank,
        embeddings=rows,
        labels=[0, 1, 2, 0, 1, 2],
        class_names=["a", "b_b", "c"],
    )
    found = load_dataset("feature-bank", bank, classes="c,b b")
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.images.embeddings[:, 0].tolist() == [2, 4, 8, 10]  # type: ignore[union-attr]
    write_folder(
        tmp_path / "texts",
        {"all.csv": b"text,label\nx,a\ny,b\nz,c\nx,a\ny,b\nz,c\n"},
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
    assert whole.digest != run.config.digest
    assert "classes" not in whole.identity
