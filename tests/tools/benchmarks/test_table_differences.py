"""Tables of paired differences: by hand, and what is refused."""

import re

import pytest

from privaudit_tools.benchmarks.table_differences import differences
from tests.tools.tables.test_stored import stored_of

STORED = stored_of(
    {
        "a x": [9.0, 9.5, 9.7, 20.0],
        "b x": [5.0, 5.1, 5.2],
        "c x": [8.0, 9.9, 9.8],
        "a y": [1.0, 3.0],
        "b y": [2.0, 2.0],
    }
)


def test_differences_are_paired_by_seed_and_bold_where_0_is_outside() -> None:
    caption, table = differences(STORED, "local", ["a", "b"]).split("\n\n")
    # 4.0, 4.4, 4.5: mean 4.3, deviation 0.2646, t(2) = 4.303: 0.657; -1 and 1 about 0.
    assert table.splitlines() == [
        "|  | x | y |",
        "| --- | --- | --- |",
        "|  | **4.3 [3.6, 5.0]** | 0.0 [\N{MINUS SIGN}12.7, 12.7] |",
    ]
    assert "a less b, in points, paired by seed (n = 2 to 3)" in caption
    assert "in about 0.1 of 2" in caption


def test_lines_name_the_rows_and_end_with_the_mean() -> None:
    text = differences(STORED, "local", ["a", "b", "c", "mean"])
    assert re.findall(r"^\| a less .*$", text, re.M) == [
        "| a less b | **4.3 [3.6, 5.0]** | 0.0 [\N{MINUS SIGN}12.7, 12.7] "
        "| 2.1 [\N{MINUS SIGN}5.5, 9.7] |",
        "| a less c | 0.2 [\N{MINUS SIGN}1.7, 2.0] | 0.2 [\N{MINUS SIGN}1.7, 2.0] |",
    ]  # the mean of 4.0 and -1.0 of seed 1, of 4.4 and 1.0 of seed 2


@pytest.mark.parametrize(
    ("metric", "rows", "says"),
    [
        ("lokal", ["a", "b"], "'lokal' is no metric. There are: local"),
        ("local", ["a", "bb"], "'bb' is no row. There are: a, b, c"),
        ("local", ["a"], "name another one to subtract"),
        ("local", ["a", "mean"], "name another one to subtract"),
    ],
)
def test_a_slip_of_the_pen_is_refused(metric: str, rows: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(says)):
        differences(STORED, metric, rows)


def test_rows_without_a_common_seed_are_refused() -> None:
    apart = stored_of({"a x": [1.0, 2.0], "b y": [1.0, 2.0]})
    with pytest.raises(SystemExit, match="No seed is shared by a and b"):
        differences(apart, "local", ["a", "b"])
