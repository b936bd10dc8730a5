import json
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.captions.image_captions import read_image_captions
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN
from privaudit.datasets.sources import load_dataset
from tests.privaudit.datasets.conftest import (
    Bring,
    assert_refused,
    greys,
    parts_of,
    picture,
    write_folder,
)

LIST = "metadata.jsonl"
LINES: list[dict[str, Any]] = [
    {"image": "./1.png", "captions": ["A dog. ", "One dog."], "label": "dog"},
    {"image": "2.png", "captions": "A cat.", "label": "cat"},
    {"image": "1.png", "question": "Which?", "answer": ["dog", "a dog"],
     "label": "dog"},
    {"image": "2.png", "question": "Which?", "choices": ["dog", "cat"],
     "answer": "cat", "label": "cat"},
]  # fmt: skip
PICTURES = {f"{n}.png": picture(n) for n in (1, 2)}


def lines(*content: Any) -> bytes:
    return "\n".join(json.dumps(line) for line in content).encode() + b"\n\n"


def of_one(**keys: Any) -> dict[str, Any]:
    return {"image": "1.png", **keys}


def test_captions_answers_and_choices_may_stand_in_one_list(bring: Bring) -> None:
    content = BOM_UTF8 + lines(*LINES)
    dataset = load_dataset("image-captions", bring({LIST: content, **PICTURES}, [LIST]))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.labels.tolist() == [1, 0, 1, 0]
    assert dataset.split is None
    asked = [dialogue.question for dialogue in dataset.dialogues]
    assert asked[:3] == ["Describe the picture.", "Describe the picture.", "Which?"]
    assert asked[3] == "Context: N/A\nQuestion: Which?\nOptions: (A) dog (B) cat"
    answers = [dialogue.answers for dialogue in dataset.dialogues]
    assert answers == [("A dog.", "One dog."), ("A cat.",), ("dog", "a dog"), ("B",)]
    assert dataset.dialogues[3].choices == ("dog", "cat")
    assert greys(dataset) == [1, 2, 1, 2]


def test_labels_may_be_left_out_and_splits_given(tmp_path: Path) -> None:
    one = {"image": "1.png", "captions": "A dog.", "split": "train"}
    two = {"image": "2.png", "captions": "A cat.", "split": "Test"}
    path = write_folder(tmp_path, {LIST: lines(one, two), **PICTURES})
    dataset = read_image_captions(path / LIST, question="What is it?")
    assert dataset.class_names == ("picture",)
    assert parts_of(dataset) == [TRAIN, TEST_SPLIT]
    assert dataset.dialogues[0].question == "What is it?"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (of_one(caption="A dog."), r"Line 2 .* key 'caption'\. There are"),
        (of_one(), "Line 2 .* has neither answer nor captions"),
        (of_one(captions="A dog.", answer="dog"), "both answer and captions"),
        (of_one(captions=" ", label="dog"), r"answers \[' '\]"),
        (of_one(captions=[]), r"answers \[\]"),
        (of_one(answer="dog", question=""), "asks ''"),
        (of_one(image=1, captions="A."), "Line 2 .* at image: Input should be a"),
        ({"captions": "A dog."}, "Line 2 .* at image: Field required"),
        ([1], "Line 2 .* Input should be an object|dictionary"),
        (of_one(captions="A dog."), "Line 2 .* has no label, and 1 of 2"),
        (
            of_one(answer="cow", choices=["dog", "cat"]),
            r"answer 'cow', which is none of the choices \(A\) dog \(B\) cat",
        ),
        (of_one(answer=["A", "B"], choices=["dog", "cat"]), "choices and 2 answers"),
        (of_one(answer="A", choices=["dog"]), r"Give from 2 to 26"),
        (of_one(image="../1.png", captions="A.", label="dog"), "leaves the folder"),
        (
            of_one(captions="A.", label="dog", split="x"),
            "Line 1 .* has no split, and 1 of 2",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    line: Any, message: str, tmp_path: Path
) -> None:
    content = lines(LINES[0], line)
    path = write_folder(tmp_path / "home", {LIST: content, **PICTURES})
    assert_refused("image-captions", path, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"image": "1.png", ', "Line 1 .* Invalid JSON"),
        (b"\xff\n", "Line 1 .* Invalid JSON"),
        (b"\n \n", r"metadata\.jsonl is empty"),
        (lines(of_one(captions="A.", split="third")), "of the split 'third'"),
    ],
)
def test_a_list_that_is_none_is_one_clear_line(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = write_folder(tmp_path, {LIST: content, **PICTURES})
    with pytest.raises(ConfigError, match=message):
        read_image_captions(path)


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingFileError, match=r"no metadata\.jsonl in"):
        read_image_captions(tmp_path)
    write_folder(tmp_path, {LIST: lines(*LINES), "1.png": picture(1)})
    with pytest.raises(MissingFileError, match=r"2 of 4 pictures .* 2\.png"):
        read_image_captions(tmp_path)
    write_folder(tmp_path, {"second.jsonl": b""})
    with pytest.raises(ConfigError, match=r"holds metadata\.jsonl, second\.jsonl"):
        read_image_captions(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    with pytest.raises(MissingFileError, match=r"needs metadata\.jsonl, with a line"):
        load_dataset("image-captions")
