"""Tables and files of scores: one table from each kind, and one line for what is wrong."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit.auditing.score_table import EVERYBODY, Names, ScoreTable, read_scores
from privaudit.core.errors import ConfigError, LimitError, MissingFileError

SCORES = np.array([0.9, 0.1, 0.8, 0.3])
MEMBER = np.array([True, False, True, False])
NAMES = ["d", "c", "b", "a"]


def test_records_stand_in_the_order_of_their_names_whatever_the_file_s() -> None:
    clients, classes = ["y", "x", "y", "x"], [1, 1, 0, 0]
    table = ScoreTable.of(SCORES, MEMBER, clients, classes, NAMES)
    assert table.scores.tolist() == [0.3, 0.8, 0.1, 0.9]
    assert table.is_member.tolist() == [False, True, False, True]
    assert (table.clients, table.client.tolist()) == (("x", "y"), [0, 1, 0, 1])
    assert (table.classes, table.label.tolist()) == (("0", "1"), [0, 0, 1, 1])
    mixed = [2, 0, 3, 1]
    again = ScoreTable.of(
        -SCORES[mixed],
        ~MEMBER[mixed],
        *([column[n] for n in mixed] for column in (clients, classes, NAMES)),
    )
    assert again.names_hash == table.names_hash != ""
    np.testing.assert_array_equal(again.scores, -table.scores)


def test_other_names_clients_or_classes_are_other_records() -> None:
    hashes = {
        ScoreTable.of(SCORES, MEMBER, clients, classes, records).names_hash
        for clients, classes, records in (
            (None, None, NAMES),
            (None, None, [*NAMES[:3], "e"]),
            (["x", "x", "x", "y"], None, NAMES),
            (None, torch.tensor([0, 0, 0, 1]), NAMES),
        )
    }
    assert len(hashes) == 4
    unnamed = ScoreTable.of(SCORES, MEMBER)
    assert (unnamed.names_hash, unnamed.clients) == ("", (EVERYBODY,))


def test_a_record_may_be_a_candidate_of_two_clients_and_not_twice_of_one() -> None:
    twice = ["a", "a", "b", "b"]
    ScoreTable.of(SCORES, MEMBER, ["x", "y", "x", "y"], records=twice)
    with pytest.raises(ConfigError, match="'b' stands there more than once"):
        ScoreTable.of(SCORES, MEMBER, ["x", "y", "x", "x"], records=twice)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["x"], r"4 scores, and the names by client are of shape \(1,\)"),
        (["x", "", "y", "y"], "A client is called ''"),
        (["x", "x" * 201, "y", "y"], "1 to 200 printable"),
        (["x", "a\nb", "y", "y"], "1 to 200 printable"),
        (["x", math.nan, "y", "y"], "4 names by client 1 are missing"),
        (np.array([None, math.nan, "y", "y"], object), "by client 2 are missing"),
        (torch.tensor([1, math.nan, math.nan, math.nan]), "by client 3 are missing"),
    ],
)
def test_what_is_no_name_is_refused(names: Names, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ScoreTable.of(SCORES, MEMBER, names)


def test_records_that_share_a_coin_name_the_first_of_them() -> None:
    scores, truth = np.arange(5.0), np.array([1, 0, 1, 0, 1], bool)
    table = ScoreTable.of(scores, truth, records=list("edcba"), groups=list("xyxzx"))
    assert table.scores.tolist() == [4, 3, 2, 1, 0]
    assert table.group is not None
    assert table.group.tolist() == [0, 1, 0, 3, 0]
    with pytest.raises(ConfigError, match="Records of the group 'x' differ in the"):
        ScoreTable.of(scores, truth, list("ababb"), groups=list("xyxzx"))


def test_groups_of_members_and_others_had_a_coin_for_each_record() -> None:
    scores, truth = np.arange(5.0), np.array([1, 0, 1, 0, 1], bool)
    table = ScoreTable.of(scores, truth, groups=list("xxyzy"))
    assert table.group is None
    assert table.cluster is not None
    assert table.cluster.tolist() == [0, 0, 2, 3, 2]


def test_a_column_of_record_names_is_no_column_of_clients() -> None:
    scores, names = np.arange(1002.0), list(map(str, range(1002)))
    with pytest.raises(
        ConfigError, match="of 1002 groups by their client, and at most"
    ):
        ScoreTable.of(scores, scores % 2 == 0, names)


ROWS = "a,0.5,1,north,cat\nb,-2,0,north,dog\nc,1e-3,TRUE,south,dog\nd,7,0.0,south,cat\n"
HEAD = "record,score,member,client,class\n"


def write(folder: Path, ending: str) -> Path:
    path = folder / f"scores.{ending}"
    if ending == "npz":
        columns = {
            "record": list("abcd"),
            "score": [0.5, -2, 1e-3, 7],
            "member": [1, 0, 1, 0],
            "client": ["north", "north", "south", "south"],
            "class": ["cat", "dog", "dog", "cat"],
        }
        np.savez(path, **columns)  # type: ignore[arg-type]
    elif ending == "jsonl":
        names = HEAD.strip().split(",")
        rows: list[dict[str, object]] = [
            dict(zip(names, row.split(","), strict=True)) for row in ROWS.split()
        ]
        rows[0] |= {"score": 0.5, "member": True}
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        text = f"\ufeff{HEAD}{ROWS}"
        path.write_text(text.replace(",", "\t") if ending == "tsv" else text)
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "npz"])
def test_each_kind_of_file_gives_the_same_table(tmp_path: Path, ending: str) -> None:
    table = read_scores(write(tmp_path, ending))
    assert table.scores.tolist() == [0.5, -2.0, 0.001, 7.0]
    assert table.is_member.tolist() == [True, False, True, False]
    assert (table.clients, table.client.tolist()) == (("north", "south"), [0, 0, 1, 1])
    assert (table.classes, table.label.tolist()) == (("cat", "dog"), [0, 1, 1, 0])
    hashes = {read_scores(write(tmp_path, e)).names_hash for e in ("csv", ending)}
    assert len(hashes) == 1


def test_what_is_known_without_the_model_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "scores.CSV"
    path.write_text("score, member,feature_b,record,baseline\n1,1,2,b,3\n4,0,5,a,6\n")
    table = read_scores(path)
    assert table.known is not None
    assert table.known.tolist() == [[6, 5], [3, 2]]  # as the records' names are sorted
    arrays = {"score": [1.0, 4.0], "member": [1, 0], "record": ["b", "a"]}
    rows = {"feature_b": [[2, 2], [5, 5]], "baseline": [3.0, 6.0]}
    np.savez(tmp_path / "scores.npz", **arrays, **rows)  # type: ignore[arg-type]
    wide = read_scores(tmp_path / "scores.npz").known
    assert wide is not None
    assert wide.tolist() == [[6, 5, 5], [3, 2, 2]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"begins with \[\]"),
        ("score,member\n", "holds no scores"),
        ("score\n1\n", "The head of .*scores.csv has the columns 'score': no member"),
        ("score,member,clients\n1,1,a\n", "'clients', which is not read"),
        ("score,member\nhigh,1\n", "Line 2 of .*the score 'high', which is no finite"),
        ("score,member\n1,1\nnan,0\n", "Line 3 of .*'nan'"),
        ("score,member\n1,2\n", "Line 2 of .*'2' under member. Write 1 if"),
        ("score,member\n1,1\n2,1\n", "2 members and 0 non-members"),
        ("score,member\n1\n", "has 1 fields"),
        ("score,member,client\n1,1,\n2,0,a\n", "Line 2 of .*the name ''"),
        ("score,member,record\n1,1,a\n2,0,a\n", "'a' stands there more than once"),
        ('score,member\n"1,1\n', "is broken"),
        ("score,member,baseline\n1,1,nan\n2,0,1\n", "Line 2 of .*the baseline 'nan'"),
        ("score,member,feature_x\n1,1,1\n2,0,cat\n", "feature_x 'cat', which is no"),
        ("score;member\n1;1\n", "'score;member': no score"),
        # as numpy would make all others as long
        (f"score,member,record\n1,1,{'a' * 100_000}\n", "1 to 200 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_scores(path)


def test_rows_of_json_have_the_same_columns(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text('{"score": 1, "member": 1}\n{"score": 1, "member": 0, "client": 1}')
    with pytest.raises(ConfigError, match=r"Line 2 of .* other columns than the first"):
        read_scores(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"score": np.array(["a", "b"])}, "scores of type <U1"),
        ({"member": np.array([0, 2])}, "1 or 0 for each record"),
        ({"member": np.array([0, 1, 1])}, r"the truth is of shape \(3,\)"),
        ({"score": np.zeros((2, 2))}, r"scores of shape \(2, 2\)"),
        ({"score": np.array([1.0, np.inf])}, "1 of 2 are not"),
        ({"hat": np.zeros(2)}, "'hat', which is not read"),
        ({"baseline": np.array(["a", "b"])}, "and type <U"),
        ({"baseline": np.array([np.nan, 1])}, "of 1 of 2 records it is not"),
        ({"feature_x": np.array([1e308, -1e308])}, "at most 1e[+]100 either way"),
        ({"feature_x": np.zeros((2, 2, 2))}, r"of shape \(2, 2, 2\)"),
        ({"feature_x": np.zeros(3)}, r"of shape \(3,\)"),
        ({"feature_x": np.array(1.0)}, r"of shape \(\)"),
        ({"record": np.array([b"\xff", b"a"])}, "by record are bytes that are no"),
        ({"group": np.array([1.0, np.nan])}, "2 names by group 1 are missing"),
        ({"record": np.array([{}, 1], dtype=object)}, "Python objects"),
    ],
)
def test_arrays_that_are_no_table_are_refused(
    tmp_path: Path, changed: dict[str, np.ndarray], says: str
) -> None:
    path = tmp_path / "scores.npz"
    columns = {"score": np.array([1.0, 2.0]), "member": np.array([0, 1]), **changed}
    np.savez(path, **columns)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says):
        read_scores(path)


def test_files_are_bounded_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, arrays = write(tmp_path, "csv"), write(tmp_path, "npz")
    monkeypatch.setenv("PRIVAUDIT_MAX_RECORDS", "3")
    with pytest.raises(LimitError, match="has 4 records, and at most 3"):
        read_scores(table)
    monkeypatch.delenv("PRIVAUDIT_MAX_RECORDS")
    monkeypatch.setenv("PRIVAUDIT_MAX_ARRAYS", "79")
    for path in (arrays, table):  # of texts, what numpy would make of them
        with pytest.raises(LimitError, match="at most 79"):
            read_scores(path)


def test_other_files_and_missing_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"end in \.tsv, \.csv, \.jsonl, \.npz"):
        read_scores(tmp_path / "scores.pkl")
    for name in ("scores.csv", "scores.npz"):
        with pytest.raises(MissingFileError, match=name):
            read_scores(tmp_path / name)
