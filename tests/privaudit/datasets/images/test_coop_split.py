import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import DATASETS, TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.images.coop_split import KNOWN, read_coop_split
from privaudit.datasets.sources import OnDisk, load_dataset
from tests.privaudit.datasets.conftest import (
    Bring,
    Payload,
    assert_refused,
    greys,
    parts_of,
    picture,
    tree,
    write_archive,
    write_folder,
)

ROWS = {
    "train": [["cat/0.png", 0, "cat"], ["dog/0.png", 1, "stop_sign"]],
    "val": [["cat/1.png", 0, "cat"]],
    "test": [["dog/1.png", 1, "stop_sign"], ["dog/2.png", 1, "stop_sign"]],
}
SPLIT = "split_zhou_Test.json"


DOG = ["dog/0.png", 1, "b"]


def as_json(content: Any) -> bytes:
    return json.dumps(content).encode()


def of_rows(*rows: list[Any]) -> bytes:
    return as_json({"train": rows})


@pytest.mark.parametrize("inside", ["", "images/"])
def test_pictures_are_found_as_the_split_names_them(inside: str, bring: Bring) -> None:
    files = {f"{inside}{name}": file for name, file in tree("cat", "dog").items()}
    path = bring({**files, SPLIT: as_json(ROWS)}, [SPLIT])
    dataset = load_dataset("coop-split", path)
    assert dataset.class_names == ("cat", "stop sign")
    assert dataset.labels.tolist() == [0, 1, 0, 1, 1]
    assert parts_of(dataset) == [TRAIN, TRAIN, VALIDATION, TEST_SPLIT, TEST_SPLIT]
    assert greys(dataset) == [0, 3, 1, 4, 5]


def test_in_an_archive_they_may_lie_behind_any_folders(tmp_path: Path) -> None:
    files = {f"deep/er/{name}": file for name, file in tree("cat", "dog").items()}
    write_archive(tmp_path / "x.zip", files)
    write_folder(tmp_path, {SPLIT: as_json(ROWS)})
    assert len(read_coop_split(tmp_path)) == 5


def test_the_splits_name_says_which_prompt_is_written(tmp_path: Path) -> None:
    files = tree("cat", "dog")
    for file, template in [
        ("split_zhou_OxfordPets.json", "a photo of a {}, a type of pet."),
        ("split_zhou_Mine.json", "a photo of a {}."),
    ]:
        path = write_folder(tmp_path / file, {**files, file: as_json(ROWS)})
        assert read_coop_split(path).template == template


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_known_data_set_lies_where_coop_puts_it(
    known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    pictures = "" if " and " in known.pictures else f"{known.pictures}/"
    files = {f"{pictures}{name}": file for name, file in tree("cat", "dog").items()}
    write_folder(tmp_path / known.folder, {**files, known.file: as_json(ROWS)})
    dataset = load_dataset(known.name)
    assert dataset.template == known.template
    assert dataset.template.format("cat")
    assert len(dataset) == 5


def test_every_data_set_of_coop_has_a_name() -> None:
    wanted = "caltech101 oxford-pets flowers102 food101 dtd eurosat ucf101 sun397"
    for name in (*wanted.split(), "stanford-cars", "fgvc-aircraft"):
        assert isinstance(DATASETS.find(name), OnDisk)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not as it should be"),
        (b"\xff\xfe", "is not as it should be"),
        (b"[1, 2]", "is not as it should be"),
        (of_rows(["cat/0.png", "0", "cat"]), "is not as it should be"),
        (of_rows(["cat/0.png", 0]), "is not as it should be"),
        (of_rows(["cat/0.png", 10**40, "cat"]), "is not as it should be"),
        (as_json({"test": ROWS["test"]}), "no picture under train"),
        (of_rows(["cat/0.png", 0, "cat"]), "holds 1 class: cat"),
        (
            of_rows(["cat/0.png", 2, "cat"]),
            r"1 classes from 2 to 2, and has no record of class 0",
        ),
        (
            of_rows(["cat/0.png", 0, "cat"], ["cat/1.png", 0, "cow"]),
            r"calls class 0 'cat', and at cat/1\.png 'cow'",
        ),
        (of_rows(["../home/cat/0.png", 0, "a"], DOG), "leaves the folder"),
        (
            of_rows(["cat/0.png", -1, "a"], ["dog/0.png", 0, "b"]),
            r"from -1 to 0, and has no record of class 1",
        ),
        (of_rows(["cat/0.png", 0, " "], DOG), "The name of class 0 is blank"),
    ],
)
def test_a_split_that_is_none_is_one_clear_line(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = write_folder(tmp_path / "home", {**tree("cat", "dog"), SPLIT: content})
    assert_refused("coop-split", path, message)


def test_missing_pictures_are_counted_and_one_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, {SPLIT: as_json(ROWS)})
    with pytest.raises(MissingFileError, match=r"cat/0\.png is not in"):
        read_coop_split(tmp_path)
    write_folder(tmp_path, {"cat/0.png": picture(), "cat/1.png": picture()})
    with pytest.raises(MissingFileError, match=r"3 of 5 pictures .* dog/0\.png"):
        read_coop_split(tmp_path)


BASE = "dassl.data.datasets.base_dataset"
_Datum = type("Datum", (), {"__module__": BASE})
"""Pickled under the name of Dassl's own, whose package nobody needs to have."""


def datum(path: str, label: int, name: str) -> Any:
    one = _Datum()
    one.__dict__ = {
        "_impath": path, "_label": label, "_domain": 0, "_classname": name,
    }  # fmt: skip
    return one


def few_shots(
    monkeypatch: pytest.MonkeyPatch, content: Any, protocol: int, base: str = BASE
) -> bytes:
    module = ModuleType(base)
    module.Datum = _Datum  # type: ignore[attr-defined]
    parts = base.split(".")
    with monkeypatch.context() as patch:
        patch.setattr(_Datum, "__module__", base)
        for count in range(len(parts)):
            patch.setitem(sys.modules, ".".join(parts[: count + 1]), module)
        return pickle.dumps(content, protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("place", ["", "split_fewshot/"])
def test_a_few_shot_split_says_what_is_trained_on(
    protocol: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "train": [
            datum("/home/somebody/data/x/images/dog/0.png", 1, "stop_sign"),
            datum(r"C:\\data\\cat/1.png", 0, "cat"),
        ],
        "val": [datum("/else/where/cat/0.png", 0, "cat")],
    }
    name = f"{place}shot_1-seed_2.pkl"
    files = {**tree("cat", "dog"), SPLIT: as_json(ROWS)}
    files[name] = few_shots(monkeypatch, content, protocol)
    path = write_folder(tmp_path / "home", files)
    dataset = load_dataset("coop-split", path / name)
    assert dataset.labels.tolist() == [1, 0, 0, 1, 1]
    assert parts_of(dataset) == [TRAIN, TRAIN, VALIDATION, TEST_SPLIT, TEST_SPLIT]
    assert greys(dataset) == [3, 1, 0, 4, 5]
    assert len(load_dataset("coop-split", path)) == 5


def test_a_copy_of_dassl_may_have_drawn_the_split_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedOTP's repository and DP-FPL's hold Dassl in a folder of that name."""
    path = write_folder(tmp_path, {**tree("cat", "dog"), SPLIT: as_json(ROWS)})
    file = path / "shot_1-seed_1.pkl"
    content = {"train": [datum("/x/dog/0.png", 1, "dog"), datum("cat/1.png", 0, "cat")]}
    file.write_bytes(few_shots(monkeypatch, content, 4, f"Dassl.{BASE}"))
    assert read_coop_split(file).labels.tolist()[:2] == [1, 0]
    for other in (f"evil.{BASE}", f"{BASE}.evil", "Dassl.dassl.utils"):
        file.write_bytes(few_shots(monkeypatch, content, 4, other))
        with pytest.raises(ConfigError, match="nothing of it was run"):
            read_coop_split(file)


def test_a_few_shot_split_that_is_none_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_folder(tmp_path, {**tree("cat", "dog"), SPLIT: as_json(ROWS)})
    file = path / "shot_1-seed_1.pkl"
    for content, message in [
        (Payload(), "nothing of it was run"),
        ({"train": [Payload()]}, "nothing of it was run"),
        ({"val": []}, "no picture under train"),
        ({"train": [1]}, "does not list records"),
        ({"train": [datum("/x/cat/0.png", 1, "cat")]}, "with label 1, and train"),
        ({"train": [datum("/x/cow/0.png", 0, "cat")]}, "with label 0, and train"),
        ({"train": [datum("/x/dog/1.png", 1, "dog")]}, "with label 1, and train"),
        ({"train": [datum("/x/cat/0.png", 0, "cat")] * 4}, "lists 4 records"),
        ({"train": [datum(f"{'/x' * 63}/cat/0.png", 0, "cat")]}, "more than 64 fol"),
    ]:
        file.write_bytes(few_shots(monkeypatch, content, 4))
        with pytest.raises(ConfigError, match=message) as caught:
            read_coop_split(file)
        assert str(file) in str(caught.value)


def test_several_splits_are_not_guessed_from(tmp_path: Path) -> None:
    names = [SPLIT, "split_zhou_Other.json"]
    write_folder(tmp_path, {**tree("cat", "dog"), **{n: as_json(ROWS) for n in names}})
    with pytest.raises(ConfigError, match=r"holds split_zhou_Other\.json, split"):
        read_coop_split(tmp_path)
    assert len(read_coop_split(tmp_path / SPLIT)) == 5


def test_a_missing_data_set_says_what_to_download_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    with pytest.raises(MissingFileError) as caught:
        load_dataset("caltech101")
    for part in (
        "'caltech101' is not in", str(tmp_path / "caltech101"), "caltech-101",
        "split_zhou_Caltech101.json", "https://data.caltech.edu", "DATASETS.md",
        f"put it into {tmp_path / 'caltech101'}", "--data",
    ):  # fmt: skip
        assert part in str(caught.value)
    with pytest.raises(MissingFileError, match=r"no split_zhou_Caltech101\.json in"):
        load_dataset("caltech101", tmp_path)


def test_aircraft_come_by_their_own_lists(tmp_path: Path) -> None:
    lists = {
        "variants.txt": b"A300B4\n707-320\n",
        "images_variant_train.txt": b"0 A300B4\n1 707-320\n",
        "images_variant_val.txt": b"2 A300B4\n",
        "images_variant_test.txt": b"3 707-320\n",
    }
    pictures = {f"images/{number}.jpg": picture(number) for number in range(4)}
    path = write_folder(tmp_path / "lists", {**lists, **pictures})
    dataset = load_dataset("fgvc-aircraft", path)
    assert dataset.class_names == ("A300B4", "707-320")
    assert dataset.labels.tolist() == [0, 1, 0, 1]
    assert dataset.template == "a photo of a {}, a type of aircraft."
    (path / "images_variant_test.txt").write_bytes(b"3 A380\n")
    other = write_archive(tmp_path / "again" / "x.tar", pictures).parent
    write_folder(other, {**lists, "images_variant_test.txt": b"3 A380\n"})
    with pytest.raises(ConfigError, match=r"picture 3 the variant 'A380'"):
        load_dataset("fgvc-aircraft", other)
