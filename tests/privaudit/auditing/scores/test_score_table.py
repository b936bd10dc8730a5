import numpy as np
import pytest
import torch

from privaudit.auditing.scores.score_table import EVERYBODY, ScoreTable
from privaudit.core.errors import ConfigError

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
    ],
)
def test_what_is_no_name_is_refused(names: list[str], says: str) -> None:
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
