"""Tables of paired differences: by hand, and what is refused."""

import re
from dataclasses import replace

import pytest

from privaudit_tools.benchmarks.table_differences import comparisons, differences
from privaudit_tools.tables.stored import StoredCell
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
        ("local", ["a", "mean"], "name another one to subtract"),
        ("local", ["mean"], "'mean' is no row"),
    ],
)
def test_a_slip_of_the_pen_is_refused(metric: str, rows: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(says)):
        differences(STORED, metric, rows)


@pytest.mark.parametrize(("later", "n"), [(1, "2 to 3"), (3, "3")])
def test_a_mean_is_of_the_seeds_that_all_columns_share(later: int, n: str) -> None:
    stored = stored_of({"a x": [1.0, 2.0, 3.0], "b x": [0.0, 0.0, 0.0]})
    cell = StoredCell(dict.fromkeys(range(1 + later, 4 + later), 0.0))
    others = {(row, "y", metric, over): cell for row, _, metric, over in stored.cells}
    stored = replace(stored, cells={**stored.cells, **others})
    text = differences(stored, "local", ["a", "b", "mean"])
    assert f"paired by seed (n = {n})" in text
    assert text.count("mean") == (later == 1)


MINUS = "\N{MINUS SIGN}"


def test_a_line_for_each_comparison_and_a_column_where_one_has_numbers() -> None:
    caption, table = comparisons(STORED, "local", ["a less b", "c"]).split("\n\n")
    assert table.splitlines() == [
        "|  | x | y |",
        "| --- | --- | --- |",
        f"| a less b | **4.3 [3.6, 5.0]** | 0.0 [{MINUS}12.7, 12.7] |",
        "| c less b | **4.1 [1.7, 6.6]** |  |",  # 3.0, 4.8, 4.6; deviation 0.9866
    ]
    assert ": points, paired by seed (n = 2 to 3)" in caption
    assert "bold where 0 is outside, by chance in about 0.1 of 3" in caption
    assert "| a less b | **" in comparisons(STORED, "local", ["c less b", "a"])
    assert table in comparisons(STORED, "local", ["others less b"])
    few = stored_of({"a x": [1.0, 2.0], "b x": [1.0, 3.0], "c y": [1.0, 2.0]})
    assert "c less b" not in comparisons(few, "local", ["others less b"])
    assert "| x |\n" in comparisons(STORED, "local", ["c less b"])


def test_a_ratio_is_bold_where_1_is_outside() -> None:
    stored = stored_of({"a x": [2.0, 2.2, 2.1], "b x": [1.0, 1.0, 1.0]})
    text = comparisons(stored, "local", ["a over b", "b over a"])
    assert "| a over b | **2.100 [1.852, 2.348]** |" in text  # 0.1 / sqrt(3) * 4.303
    assert "| b over a | **0.477 [" in text
    assert ": ratios, paired by seed (n = 3)" in text
    assert "bold where 1 is outside" in text
    assert "| 1.000 [1.000, 1.000] |" in comparisons(stored, "local", ["a over a"])


@pytest.mark.parametrize(
    ("metric", "pairs", "says"),
    [
        ("lokal", ["a less b"], "'lokal' is no metric. There are: local"),
        ("local", ["a less bb"], "'bb' is no row. There are: a, b, c"),
        ("local", ["a less b", "cc"], "'cc' is no row"),
        ("local", ["a less b", "c over b"], "'c over b' is no row"),
        ("local", ["a", "a less b"], "'a' has no 'less' or 'over' between two rows"),
    ],
)
def test_a_slip_in_a_comparison_is_refused(
    metric: str, pairs: list[str], says: str
) -> None:
    with pytest.raises(SystemExit, match=re.escape(says)):
        comparisons(STORED, metric, pairs)


def test_what_has_no_common_seed_or_nothing_to_divide_by_is_refused() -> None:
    apart = stored_of({"a x": [1.0, 2.0], "b y": [1.0, 2.0], "c x": [0.0, 1.0]})
    with pytest.raises(SystemExit, match="No seed is shared by a and b"):
        differences(apart, "local", ["a", "b"])
    with pytest.raises(SystemExit, match="No seed is shared in any of: a less b"):
        comparisons(apart, "local", ["a less b"])
    with pytest.raises(SystemExit, match="is 0 of a seed"):
        comparisons(apart, "local", ["a over c"])
