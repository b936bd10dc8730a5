import json
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.sources import load_dataset
from privaudit.statistics.captions.answers import exact_match
from tests.privaudit.datasets.conftest import (
    Bring,
    assert_refused,
    greys,
    parts_of,
    picture,
    write_folder,
)

QUESTION = {
    "question": "Which of these states is farthest north?",
    "choices": ["West Virginia", "Louisiana", "Arizona"], "answer": 0,
    "hint": "", "image": "image.png", "task": "closed choice", "grade": "grade2",
    "subject": "social science", "topic": "geography", "category": "Geography",
    "skill": "Read a map", "lecture": "", "solution": "", "split": "train",
}  # fmt: skip
PROBLEMS: dict[str, Any] = {
    "1": QUESTION,
    "2": {**QUESTION, "image": None},
    "3": {
        **QUESTION, "topic": "physics", "choices": ["sample A", "sample B"],
        "answer": 1, "hint": "Two solutions. ", "question": "Which is hotter?",
    },
    "4": {**QUESTION, "answer": 2},
}  # fmt: skip
SPLIT = {
    "train": ["3", "2"], "val": ["4"], "test": ["1"], "trainval": ["2", "3", "4"],
    "minival": [], "minitest": [],
}  # fmt: skip
LISTS = ("problems.json", "pid_splits.json")


def files(
    problems: Any = PROBLEMS, split: Any = SPLIT, folder: str = ""
) -> dict[str, bytes]:
    return {
        "problems.json": json.dumps(problems).encode(),
        "pid_splits.json": json.dumps(split).encode(),
        f"{folder}train/3/image.png": picture(3),
        f"{folder}val/4/image.png": picture(4),
        f"{folder}test/1/image.png": picture(1),
    }


@pytest.mark.parametrize("folder", ["", "images/"])
def test_questions_with_a_picture_are_read_as_the_split_lists_them(
    folder: str, bring: Bring
) -> None:
    dataset = load_dataset("scienceqa", bring(files(folder=folder), LISTS))
    assert dataset.class_names == ("geography", "physics")
    assert dataset.labels.tolist() == [1, 0, 0]
    assert parts_of(dataset) == [TRAIN, VALIDATION, TEST_SPLIT]
    assert greys(dataset) == [3, 4, 1]


def test_the_question_is_written_as_the_published_template_has_it(
    tmp_path: Path,
) -> None:
    dialogues = load_dataset("scienceqa", write_folder(tmp_path, files())).dialogues
    assert dialogues[0].question == (
        "Context: Two solutions.\nQuestion: Which is hotter?\n"
        "Options: (A) sample A (B) sample B"
    )
    assert dialogues[2].question.startswith("Context: N/A\nQuestion: Which of these")
    assert [dialogue.answers for dialogue in dialogues] == [("B",), ("C",), ("A",)]
    assert exact_match("sample B", dialogues[0].answers, dialogues[0].choices)
    assert not exact_match("A", dialogues[0].answers, dialogues[0].choices)


@pytest.mark.parametrize(
    ("problems", "split", "message"),
    [
        ("{", SPLIT, r"problems\.json is not as it should be"),
        ({"1": {**QUESTION, "topic": 3}}, SPLIT, r"at 1\.topic: Input should be a"),
        ({"1": {"image": "x.png"}}, SPLIT, r"at 1\.question: Field required"),
        (PROBLEMS, {"train": ["1"]}, r"pid_splits\.json .* at val: Field required"),
        (PROBLEMS, {**SPLIT, "val": ["9"]}, r"question 9, .* among the 4 of problems"),
        (PROBLEMS, {**SPLIT, "test": ["1", "1"]}, "the question 1 more than once"),
        (PROBLEMS, {**SPLIT, "train": [], "test": []}, "holds 1 class: geography"),
        (
            PROBLEMS,
            {"train": ["2"], "val": [], "test": []},
            "None of the 1 questions in .* has a picture",
        ),
        (
            {**PROBLEMS, "4": {**QUESTION, "answer": 3}},
            SPLIT,
            r"Question 4 .* 3 choices, and its answer is number 3",
        ),
        (
            {**PROBLEMS, "4": {**QUESTION, "choices": ["a"], "answer": 0}},
            SPLIT,
            r"Question 4 .* choices \['a'\]",
        ),
    ],
)
def test_lists_that_cannot_be_used_are_one_clear_line(
    problems: Any, split: Any, message: str, tmp_path: Path
) -> None:
    content = files(problems, split)
    if problems == "{":
        content["problems.json"] = b"{"
    path = write_folder(tmp_path / "home", content)
    assert_refused("scienceqa", path, message)


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = files()
    del content["test/1/image.png"]
    with pytest.raises(MissingFileError, match=r"1 of 3 pictures .* test/1/image\.png"):
        load_dataset("scienceqa", write_folder(tmp_path / "one", content))
    del content["pid_splits.json"]
    with pytest.raises(MissingFileError, match=r"no pid_splits\.json"):
        load_dataset("scienceqa", write_folder(tmp_path / "two", content) / ".")
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    with pytest.raises(MissingFileError) as caught:
        load_dataset("scienceqa")
    for part in ("problems.json", "github.com/lupantech/ScienceQA", "put it into"):
        assert part in str(caught.value)
