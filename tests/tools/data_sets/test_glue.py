import json
from pathlib import Path

import pytest
import torch

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, Dataset
from privaudit.datasets.sources import load_dataset
from privaudit.statistics.captions.answers import exact_match
from tests.conftest import Cli
from tests.privaudit.datasets.conftest import parts_of, texts_of, write_folder

SST2 = {
    "train.tsv": 'sentence\tlabel\na "fine film \t1\ndull\u2028 \t0\n',
    "dev.tsv": "sentence\tlabel\r\nit 's good\t1\r\n\r\nno\t0\r\n",
    "test.tsv": "index\tsentence\n0\tsecret\n",
}
QNLI = {
    "train.tsv": "index\tquestion\tsentence\tlabel\n"
    "0\tWho?\tNobody.\tnot_entailment\n7\tWhen?\tIn 1990.\tentailment\n",
    "dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWhy?\tThus.\tentailment\n",
}
HEAD = "index\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
MNLI = {
    "train.tsv": HEAD + "0\tx\t(a)\tA dog.\tAn animal.\tneutral\tentailment\n"
    "1\tx\t(a)\tA dog.\tA cat.\tneutral\tcontradiction\n"
    "2\tx\t(a)\tA dog.\tA pet.\tneutral\tneutral\n3\tx\t(a)\tA\tB\tneutral\t-\n",
    "dev_matched.tsv": HEAD + "0\tx\t(a)\tOne.\tTwo.\tneutral\tneutral\n",
    "dev_mismatched.tsv": HEAD + "0\ty\t(a)\tRed.\tBlue.\tneutral\tcontradiction\n",
}


NONE = "sentence\tlabel\n"
ONE = f"{NONE}x\t1\n"


def read(name: str, files: dict[str, str], folder: Path) -> Dataset:
    write_folder(folder, {path: text.encode() for path, text in files.items()})
    return load_dataset(name, folder)


def test_sst2_is_read_from_its_table_and_dev_is_the_test_part(tmp_path: Path) -> None:
    dataset = read("sst-2", SST2, tmp_path)
    assert texts_of(dataset) == (('a "fine film',), ("dull",), ("it 's good",), ("no",))
    assert dataset.labels.tolist() == [1, 0, 1, 0]
    assert dataset.class_names == ("negative", "positive")
    assert parts_of(dataset) == [TRAIN, TRAIN, TEST_SPLIT, TEST_SPLIT]


def test_qnli_and_mnli_are_pairs(tmp_path: Path) -> None:
    qnli = read("qnli", QNLI, tmp_path / "qnli")
    assert texts_of(qnli)[1] == ("When?", "In 1990.")
    assert qnli.class_names == ("entailment", "not entailment")
    assert qnli.labels.tolist() == [1, 0, 0]
    mnli = read("mnli", MNLI, tmp_path / "mnli")
    assert texts_of(mnli)[0] == ("A dog.", "An animal.")
    assert mnli.class_names == ("entailment", "neutral", "contradiction")


def test_the_name_says_which_genres_are_tested_and_no_consensus_is_left_out(
    tmp_path: Path,
) -> None:
    matched = read("mnli", MNLI, tmp_path)
    other = load_dataset("mnli-mismatched", tmp_path)
    assert matched.labels.tolist() == [0, 2, 1, 1]
    assert other.labels.tolist() == [0, 2, 1, 2]
    assert (texts_of(matched)[-1], texts_of(other)[-1]) == (
        ("One.", "Two."),
        ("Red.", "Blue."),
    )


def test_json_lines_with_other_columns_are_the_same_data_set(tmp_path: Path) -> None:
    lines = {
        "train.jsonl": [
            {"premise": "A dog.", "hypothesis": "An animal.", "label": 0, "idx": 0},
            {"premise": "A dog.", "hypothesis": "A cat.", "label": 2, "idx": 1},
            {"premise": "A dog.", "hypothesis": "A pet.", "label": 1, "votes": [1]},
            {"premise": "A", "hypothesis": "B", "label": -1, "idx": 3},
        ],
        "validation_matched.jsonl": [
            {"premise": "One.", "hypothesis": "Two.", "label": 1}
        ],
    }
    files = {name: "\n".join(map(json.dumps, rows)) for name, rows in lines.items()}
    found = read("mnli", files, tmp_path / "json")
    assert found.hash == read("mnli", MNLI, tmp_path / "tsv").hash


def test_models_that_write_are_asked_and_answer_by_the_classs_name(
    tmp_path: Path,
) -> None:
    first, second, _ = read("qnli", QNLI, tmp_path).dialogues
    assert first.question == (
        "Question: Who?\nSentence: Nobody.\nDoes the sentence hold the answer to the "
        "question? Answer entailment or not entailment."
    )
    assert first.answers == ("not entailment",)
    assert exact_match("Not entailment.", first.answers, first.choices)
    assert not exact_match("entailment", first.answers, first.choices)
    assert exact_match("entailment", second.answers, second.choices)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train.tsv": f"{ONE}y\n"}, r"Line 3 of .*train\.tsv has 1 f"),
        (
            {"train.tsv": "text\tlabel\nx\t1\n"},
            r"Line 2 .* text, label, and no sentence",
        ),
        ({"train.tsv": f"{NONE}x\t2\n"}, r"Line 2 .* label '2'. There are 0"),
        ({"train.tsv": f"{NONE} \t1\n"}, r"Line 2 .* nothing under sentence"),
        ({"train.tsv": f"{NONE}x\t-1\n"}, r"train\.tsv has no record with a"),
        ({"train.tsv": "label\tlabel\n"}, r"begins with \['label', 'label'\]"),
        ({"train.tsv": ""}, r"begins with \[\]"),
        ({"train.tsv": ONE, "dev.tsv": NONE}, "no record with a label"),
        ({"train.tsv": ONE, "dev.tsv": ONE}, r"Class 0 \('negative'\) has no record"),
    ],
)
def test_broken_tables_are_one_clear_line(
    changed: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read("sst-2", {**SST2, **changed}, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence": "x", "label": 1', r"Line 2 of .*train\.jsonl is not JSON"),
        ("[1]", r"Line 2 of .*train\.jsonl holds a list"),
        ('{"sentence": "x"}', r"Line 2 .* sentence, and no gold_label or label"),
        ("[" * 100_000, "Line 2 .* is not JSON"),
    ],
)
def test_broken_json_lines_name_their_line(
    line: str, message: str, tmp_path: Path
) -> None:
    train = f'{{"sentence": "good", "label": 1}}\n{line}\n'
    with pytest.raises(ConfigError, match=message):
        read("sst-2", {"train.jsonl": train, "dev.tsv": SST2["dev.tsv"]}, tmp_path)


def test_what_is_no_utf8_names_its_line(tmp_path: Path) -> None:
    bad = b"sentence\tlabel\nok\t1\ncaf\xe9\t0\n"
    write_folder(tmp_path, {"train.tsv": bad, "dev.tsv": bad})
    with pytest.raises(ConfigError, match=r"Line 3 of .*train\.tsv is not UTF-8"):
        load_dataset("sst-2", tmp_path)


def test_what_is_missing_is_named_and_parquet_is_not_read(tmp_path: Path) -> None:
    files = {"train.tsv": MNLI["train.tsv"], "dev_matched.tsv": MNLI["dev_matched.tsv"]}
    read("mnli", files, tmp_path)
    with pytest.raises(MissingFileError, match=r"none of dev_mismatched\.tsv, dev_mis"):
        load_dataset("mnli-mismatched", tmp_path)
    write_folder(tmp_path / "hf", {"train-00000-of-00001.parquet": b"PAR1"})
    with pytest.raises(ConfigError, match=r"Parquet is not read: write it as \.jsonl"):
        load_dataset("sst-2", tmp_path / "hf")


def test_the_folder_of_glues_own_download_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path))
    read("sst-2", SST2, tmp_path / "glue_data" / "SST-2")
    assert torch.equal(load_dataset("sst-2").labels, torch.tensor([1, 0, 1, 0]))


def test_a_broken_table_ends_the_command_with_two_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    files = {"train.tsv": b"sentence\tlabel\nx\n", "dev.tsv": b"sentence\tlabel\n"}
    write_folder(tmp_path / "glue", files)
    words = ["train", "--trainer", "zero-shot", "--dataset", "sst-2", "--data", "glue"]
    monkeypatch.chdir(tmp_path)
    code, _, error = cli(*words)
    assert code == 2
    assert "Line 2 of" in error
    assert "train.tsv has 1 fields" in error
