import json
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.datasets.dataset import TEST_SPLIT, TRAIN, VALIDATION
from privaudit.datasets.sources import load_dataset
from privaudit.datasets.text.labelled_tables import COLUMNS_FILE
from tests.privaudit.datasets.conftest import (
    assert_refused,
    greys,
    parts_of,
    picture,
    texts_of,
    write_folder,
)

HEAD = "Path,Sex,Frontal/Lateral,Edema,Fracture,Pleural Effusion\n"
TRAIN_ROWS = (
    ("1/view1.jpg", "Frontal", "1.0", "", "1.0"),
    ("1/view2.jpg", "Lateral", "", "", "0.0"),
    ("2/view1.jpg", "Frontal", "1.0", "-1.0", "-1.0"),
    ("3/view1.jpg", "Frontal", "", "1.0", ""),
    ("4/view1.jpg", "Frontal", "0.0", "0.0", "0.0"),
)
VALID_ROWS = (("5/view1.jpg", "Frontal", "1.0", "0.0", "0.0"),)
NAME = "CheXpert-v1.0-small"


def table(part: str, rows: Any) -> bytes:
    lines = [
        f"{NAME}/{part}/{file},Female,{view},{','.join(truths)}\n"
        for file, view, *truths in rows
    ]
    return (HEAD + "".join(lines)).encode()


def chexpert(folder: Path, **columns: Any) -> Path:
    files = {
        "train.csv": table("train", TRAIN_ROWS),
        "valid.csv": table("valid", VALID_ROWS),
        **{f"train/{row[0]}": picture(i) for i, row in enumerate(TRAIN_ROWS)},
        **{f"valid/{row[0]}": picture(5) for row in VALID_ROWS},
    }
    if columns:
        files[COLUMNS_FILE] = json.dumps(columns).encode()
    return write_folder(folder / NAME, files)


def test_an_owner_column_makes_domains(tmp_path: Path) -> None:
    rows = "text,label,writer\na,yes,Zoe\nb,no,Ann\nc,yes,Zoe\n"
    columns = json.dumps({"owner": "writer"})
    files = {"t.csv": rows.encode(), COLUMNS_FILE: columns.encode()}
    dataset = load_dataset("text-table", write_folder(tmp_path, files))
    assert dataset.domains is not None
    assert dataset.domains.tolist() == [1, 0, 1]
    assert dataset.domain_names == ("Ann", "Zoe")


def test_chexpert_has_one_finding_and_ignores_uncertain_records_by_default(
    tmp_path: Path,
) -> None:
    dataset = load_dataset("chexpert", chexpert(tmp_path))
    assert dataset.class_names == ("no Pleural Effusion", "Pleural Effusion")
    assert dataset.labels.tolist() == [1, 0, 0, 0, 0]
    assert greys(dataset) == [0, 1, 3, 4, 5]
    assert parts_of(dataset) == [TRAIN] * 4 + [TEST_SPLIT]
    assert dataset.template == "a chest X-ray with {}."


@pytest.mark.parametrize(("policy", "label"), [("zeros", 0), ("ones", 1)])
def test_what_is_uncertain_is_taken_for_what_the_policy_says(
    policy: str, label: int, tmp_path: Path
) -> None:
    dataset = load_dataset("chexpert", chexpert(tmp_path, uncertain=policy))
    assert dataset.labels.tolist() == [1, 0, label, 0, 0, 0]


@pytest.mark.parametrize(
    ("policy", "labels", "kept"),
    [
        ("ignore", [0, 1, 0], [0, 3, 5]),
        ("zeros", [0, 0, 1, 0], [0, 2, 3, 5]),
        ("ones", [0, 1, 0], [0, 3, 5]),
    ],
)
def test_of_several_findings_the_only_one_is_the_class(
    policy: str, labels: list[int], kept: list[int], tmp_path: Path
) -> None:
    """Pictures 1 and 4 have none, and of picture 2 one is uncertain."""
    path = chexpert(tmp_path, labels=["Edema", "Fracture"], uncertain=policy)
    dataset = load_dataset("chexpert", path)
    assert greys(dataset) == kept
    assert dataset.labels.tolist() == labels


def test_a_record_with_several_findings_is_left_out(tmp_path: Path) -> None:
    findings = ["Edema", "Fracture", "Pleural Effusion"]
    path = chexpert(tmp_path, labels=findings, uncertain="zeros")
    with pytest.raises(ConfigError, match=r"Class 2 \('Pleural Effusion'\) has no rec"):
        load_dataset("chexpert", path)  # the only one with an effusion has an oedema


def test_only_rows_that_are_asked_for_count(tmp_path: Path) -> None:
    path = chexpert(tmp_path, where={"Frontal/Lateral": "Frontal"})
    assert greys(load_dataset("chexpert", path)) == [0, 3, 4, 5]


def test_parts_can_stand_in_a_column(tmp_path: Path) -> None:
    rows = "image,label,split\na.png,x,train\nb.png,y,validate\nc.png,y,TEST\n"
    files = {f"{name}.png": picture(i) for i, name in enumerate("abc")}
    path = write_folder(
        tmp_path,
        {
            "all.csv": rows.replace("validate", "val").encode(), **files,
            COLUMNS_FILE: json.dumps({"split": "split"}).encode(),
        },
    )  # fmt: skip
    dataset = load_dataset("image-table", path)
    assert parts_of(dataset) == [TRAIN, VALIDATION, TEST_SPLIT]
    assert dataset.class_names == ("x", "y")
    (path / "all.csv").write_text(rows)
    with pytest.raises(ConfigError, match=r"Line 3 .* of the split 'validate'"):
        load_dataset("image-table", path / "all.csv")


NOTES = (
    'ROW_ID,CATEGORY,TEXT\n1,Nursing,"Pt stable,\nsaid ""fine"".\n"\n\n'
    "2,Radiology,Clear lungs.\n3,Nursing ,Slept.\n"
)


def test_notes_are_texts_of_many_lines(tmp_path: Path) -> None:
    path = write_folder(tmp_path, {"NOTEEVENTS.csv": NOTES.encode("utf-8-sig")})
    dataset = load_dataset("mimic-notes", path)
    assert texts_of(dataset)[0] == ('Pt stable,\nsaid "fine".',)
    assert dataset.class_names == ("Nursing", "Radiology")
    assert dataset.labels.tolist() == [0, 1, 0]
    assert dataset.split is None
    assert dataset.dialogues[1].question == (
        "Text: Clear lungs.\nWhich class is it? Answer Nursing or Radiology."
    )


def test_pairs_of_texts_and_names_that_no_answer_could_tell_apart(
    tmp_path: Path,
) -> None:
    columns = {"text": ["first", "second"], "label": "sign"}
    files = {
        "pairs.csv": b"first,second,sign\na,b,+\nc,d,-\n",
        COLUMNS_FILE: json.dumps(columns).encode(),
    }
    dataset = load_dataset("text-table", write_folder(tmp_path, files))
    assert texts_of(dataset) == (("a", "b"), ("c", "d"))
    assert dataset.dialogues == ()


GOOD = "text,label\na,x\nb,y\n"


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ("text\na\n", {}, r"Line 2 of .* the columns text, and no label"),
        ("text,label\na\n", {}, r"Line 2 of .* has 1 fields, .* names 2 columns"),
        ("text,label\na,\n", {}, r"Line 2 of .* nothing under label"),
        ("text,label\n,x\n", {}, r"Line 2 of .* nothing under text"),
        ('text,label\na,x\n"b,y\n', {}, r"begins in line 3 of .* is broken \(unexp"),
        ('text,label\n"a"b,x\n', {}, r"begins in line 2 of .* is broken \("),
        ("text,label\na,x\n", {}, "holds 1 class: x"),
        (
            GOOD,
            {"target": "label"},
            r"Line 2 of .* has 'x' under label. There are 1, 0",
        ),
        (
            GOOD,
            {"label": "label", "target": "t"},
            r"says label and target of the class",
        ),
        (GOOD, {"labels": ["label"]}, r"says labels of the class. Say one of"),
        (GOOD, {"label": None}, r"says nothing of the class"),
        (GOOD, {"uncertain": "maybe"}, r"columns\.json .* at uncertain: Input should"),
        (GOOD, {"colour": "x"}, r"columns\.json .* at colour: Unexpected keyword"),
        (GOOD, {"where": {"label": "z"}}, r"No row of .* has a class"),
        (GOOD, [], r"columns\.json is not as it should be"),
    ],
)
def test_tables_that_cannot_be_used_are_one_clear_line(
    rows: str, columns: Any, message: str, tmp_path: Path
) -> None:
    files = {"t.csv": rows.encode(), COLUMNS_FILE: json.dumps(columns).encode()}
    path = write_folder(tmp_path, files)
    assert_refused("text-table", path, message)


def test_missing_pictures_and_several_tables_are_named(tmp_path: Path) -> None:
    path = chexpert(tmp_path)
    (path / "train" / "3" / "view1.jpg").unlink()
    with pytest.raises(
        MissingFileError, match=r"1 of 5 pictures .* train/3/view1\.jpg"
    ):
        load_dataset("chexpert", path)
    files = {"a.csv": GOOD.encode(), "b.csv": GOOD.encode()}
    with pytest.raises(ConfigError, match=r"holds a\.csv, b\.csv. Name one"):
        load_dataset("text-table", write_folder(tmp_path / "two", files))
    path = write_folder(tmp_path / "one", {"test.csv": b"", "testing.csv": b""})
    assert_refused("text-table", path, r"test\.csv and testing\.csv in")
    with pytest.raises(ConfigError, match=r"x\.txt is no table that is read"):
        load_dataset("text-table", write_folder(tmp_path, {"x.txt": b""}) / "x.txt")


@pytest.mark.parametrize("name", ["chexpert", "mimic-notes"])
def test_where_access_is_restricted_it_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIVAUDIT_DATA", raising=False)
    with pytest.raises(MissingFileError, match="restricted, and nothing is downloaded"):
        load_dataset(name)


@pytest.mark.parametrize("name", ["/etc/hosts", "../hosts"])
def test_pictures_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    rows = f"image,label\n{name},cat\n{name}2,dog"
    path = write_folder(tmp_path / "mine", {"all.csv": rows.encode()})
    with pytest.raises(ConfigError, match="leaves the folder"):
        load_dataset("image-table", path)
