import json
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN
from privaudit.datasets.records import Dialogue
from privaudit.datasets.sources import load_dataset
from privaudit.federation.trainer import Records
from privaudit.runs.tasks import score_writing
from tests.privaudit.datasets.conftest import (
    assert_refused,
    parts_of,
    texts_of,
    write_folder,
)


def asked(question: str, *answers: str, number: str = "q", **more: Any) -> Any:
    texts = [{"text": text, "answer_start": 0} for text in answers]
    return {"id": number, "question": question, "answers": texts, **more}


def squad(**articles: list[Any]) -> bytes:
    data = [
        {"title": title, "paragraphs": [{"context": f"About {title}.", "qas": qas}]}
        for title, qas in articles.items()
    ]
    return json.dumps({"version": "1.1", "data": data}).encode()


TRAIN_FILE = squad(
    Super_Bowl=[
        asked("Who won?", "Denver Broncos"),
        asked("To whom was it given?", "Denver"),
        asked("  ", "a blank question"),
    ],
    Warsaw=[asked("In which year?", "1944"), asked("Name the river.", "Vistula")],
)
DEV_FILE = squad(Beyonc=[asked("who sang?", "Beyonce", "Beyonce", "She")])
FILES = {"train-v1.1.json": TRAIN_FILE, "dev-v1.1.json": DEV_FILE}


def test_questions_are_labelled_by_the_word_that_asks_and_dev_tests(
    tmp_path: Path,
) -> None:
    dataset = load_dataset("squad", write_folder(tmp_path, FILES))
    assert dataset.class_names == ("other", "which", "who")
    assert dataset.labels.tolist() == [2, 2, 1, 0, 2]
    assert parts_of(dataset) == [TRAIN] * 4 + [TEST_SPLIT]
    assert texts_of(dataset)[0] == ("Who won?", "About Super_Bowl.")


def test_all_answers_are_references_and_the_context_is_written_out(
    tmp_path: Path,
) -> None:
    dialogues = load_dataset("squad", write_folder(tmp_path, FILES)).dialogues
    assert dialogues[0].question == "Context: About Super_Bowl.\nQuestion: Who won?"
    assert dialogues[-1].answers == ("Beyonce", "She")
    assert not any(dialogue.choices for dialogue in dialogues)


def test_articles_are_the_labels_of_what_comes_in_one_piece(tmp_path: Path) -> None:
    dataset = load_dataset("squad-articles", write_folder(tmp_path, FILES))
    assert dataset.class_names == ("Super Bowl", "Warsaw")
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.split is None


def test_the_second_version_may_be_answered_by_unanswerable(
    tmp_path: Path,
) -> None:
    train = squad(
        A=[asked("Who?", "B", is_impossible=False), asked("When?", is_impossible=True)]
    )
    files = {"train-v2.0.json": train, "dev-v2.0.json": train}
    first, second, *_ = load_dataset("squad", write_folder(tmp_path, files)).dialogues
    assert first.question.endswith("does not answer it, write: unanswerable.")
    assert (first.answers, second.answers) == (("B",), ("unanswerable",))


def test_answers_are_scored_as_squad_does(tmp_path: Path) -> None:
    dialogues = load_dataset("squad", write_folder(tmp_path, FILES)).dialogues
    said = ["the Broncos!", "Denver", "in 1944", "river", "she"]
    nothing = torch.zeros(len(said), 1), torch.zeros(len(said)).long()
    records = Records(*nothing, dialogues=dialogues)
    written = score_writing([said, said], records)
    assert written.metric == "F1"
    assert written.scores.tolist() == [pytest.approx([2 / 3, 1, 2 / 3, 0, 1])] * 2
    assert written.captions["F1"].value == pytest.approx(10 / 15)
    assert written.captions["exact match"].value == pytest.approx(2 / 5)
    assert written.captions["F1"].unresolved == "needs 10 records, has 5"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"train-v1\.1\.json is not as it should be"),
        (b'{"data": [{"title": "A"}]}', r"at data\.0\.paragraphs: Field required"),
        (b'{"data": []}', r"train-v1\.1\.json asks nothing"),
        (squad(A=[asked("Who?", number="q7")]), r"Question q7 .* at least one is exp"),
        (squad(A=[asked("Who?", " ")]), r"Question q .* the answers \[''\]"),
        (
            squad(A=[asked("Who?", "B", is_impossible=True)]),
            r"Question q .* \['B'\], and none is expected",
        ),
        (squad(A=[asked("Who?", "B")]).replace(b"About A.", b" "), "a blank paragraph"),
    ],
)
def test_broken_files_are_one_clear_line(
    content: bytes, message: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, {**FILES, "train-v1.1.json": content})
    assert_refused("squad", tmp_path, message)


def test_one_version_is_read_and_dev_lies_beside_it(tmp_path: Path) -> None:
    both = {**FILES, "train-v2.0.json": TRAIN_FILE}
    write_folder(tmp_path, both)
    with pytest.raises(
        ConfigError, match=r"train-v1\.1\.json, train-v2\.0\.json. Name"
    ):
        load_dataset("squad", tmp_path)
    assert len(load_dataset("squad", tmp_path / "train-v1.1.json")) == 5
    for name in ("train-v2.0.json", "dev-v1.1.json"):
        with pytest.raises(MissingFileError, match=r"no dev-\*\.json of its version"):
            load_dataset("squad", tmp_path / name)
    with pytest.raises(ConfigError, match="holds 1 class"):
        load_dataset("squad-articles", tmp_path / "dev-v1.1.json")


def test_a_mark_of_short_answers_changes_no_hash_of_other_data() -> None:
    assert "short" not in repr(Dialogue("Who?", ("B",), short=True))
