import json
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.captions.llava_json import read_llava_json
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import Bring, greys, picture, write_folder

LIST = "llava_v1_5_mix665k.json"
PICTURES = {"coco/train2017/1.png": picture(1), "gqa/images/2.png": picture(2)}


def talk(*texts: str, image: str | None = "coco/train2017/1.png") -> dict[str, Any]:
    turns = [
        {"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)
    ]
    return {"id": "1", "image": image, "conversations": turns}


def test_the_first_exchange_about_each_picture_is_read(bring: Bring) -> None:
    listed = [
        talk("<image>\nWhat is it? ", " A dog.", "Is it wet?", "Yes."),
        {"id": "2", "conversations": talk("Hello", "Hello.")["conversations"]},
        talk("Which colour?\n<image>", "Red.", image="./gqa/images/2.png"),
    ]
    content = json.dumps(listed).encode("utf-8-sig")
    dataset = load_dataset("llava-json", bring({LIST: content, **PICTURES}, [LIST]))
    assert [d.question for d in dataset.dialogues] == ["What is it?", "Which colour?"]
    assert [d.answers for d in dataset.dialogues] == [("A dog.",), ("Red.",)]
    assert dataset.class_names == ("coco", "gqa")
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.split is None
    assert greys(dataset) == [1, 2]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([talk("A dog.")], "begins with 'human'"),
        ([{"image": "1.png", "conversations": []}], "begins with nobody"),
        ([talk("<image>", "A dog.")], "asks '' and answers 'A dog.'"),
        ([talk("Hello", "Hello.", image=None)], "None of the 1 conversations"),
        ([{"image": 1, "conversations": []}], "not as it should be at 0.image"),
        ({"image": "1.png"}, "not as it should be"),
        ([talk("a", "b", image="../1.png")], "leaves the folder"),
    ],
)
def test_a_list_of_another_form_is_refused(
    tmp_path: Path, listed: Any, message: str
) -> None:
    path = write_folder(tmp_path, {LIST: json.dumps(listed).encode(), **PICTURES})
    with pytest.raises(ConfigError, match=message):
        read_llava_json(path)


def test_a_missing_list_or_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no \*\.json"):
        read_llava_json(tmp_path)
    listed = json.dumps([talk("a", "b", image="coco/3.png")]).encode()
    with pytest.raises(MissingFileError, match=r"coco/3\.png"):
        read_llava_json(write_folder(tmp_path, {LIST: listed, **PICTURES}))


def test_pictures_without_a_folder_are_one_class(tmp_path: Path) -> None:
    files = {LIST: json.dumps([talk("a", "b", image="1.png")]).encode()}
    dataset = read_llava_json(write_folder(tmp_path, files | {"1.png": picture(1)}))
    assert dataset.class_names == ("picture",)
