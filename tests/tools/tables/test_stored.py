"""What stored numbers say of a paper's: steps, intervals and answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.matrix import in_numbers
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.stored import (
    Judgement,
    StoredCell,
    StoredTable,
    judge,
)


def plan_of(**changes: Any) -> TablePlan:
    rows = [{"label": label, "trainer": "promptfl"} for label in ("a", "b", "c")]
    asked = {"title": "t", "seeds": [1, 2, 3], "over": "last", "rows": rows}
    columns = [{"label": label} for label in ("x", "y", "x2")]
    return TablePlan.model_validate({**asked, "columns": columns, **changes})


def stored_of(cells: dict[str, list[float]], *, metric: str = "local") -> StoredTable:
    """Return a table of rows and columns, "a x", with one number for each seed."""
    made = {}
    for place, values in cells.items():
        row, column = place.split()
        cell = StoredCell(dict(enumerate(values, 1)))
        made[row, column, metric, "last"] = cell
    return StoredTable(plan_of(), made)


def expected(**changes: Any) -> Expectation:
    return Expectation.model_validate({"of": "p", "says": "s", **changes})


def judged(one: Expectation, stored: StoredTable) -> Judgement:
    return judge(one, stored.plan, stored)


def answer(one: Expectation, stored: StoredTable) -> str:
    return judged(one, stored).answer


SENT = "megabytes per round"
SURE = {"a x": [9.0, 9.1, 9.2], "b x": [5.2, 5.0, 5.1], "c x": [5.1, 5.0, 5.2]}


def test_an_order_agrees_disagrees_or_is_open() -> None:
    stored = stored_of(SURE)
    assert answer(expected(rows=["a", "b"]), stored) == "agrees"
    assert answer(expected(rows=["b", "a"]), stored) == "disagrees"
    assert answer(expected(rows=["a", "b", "c"], order="first"), stored) == "agrees"
    spread = stored_of({"a x": [9.0, 2.0, 7.0], "b x": [5.0, 5.2, 4.8]})
    open_ = judged(expected(rows=["a", "b"]), spread)
    assert open_.answer == "open"
    assert open_.contrast == pytest.approx(1.0)


def test_an_order_of_three_is_the_mean_of_its_pairs() -> None:
    """By hand; and one that is reversed is enough to disagree."""
    cells = {"a x": [8.1, 8.2, 8.0], "b x": [4.1, 4.0, 4.2], "c x": [0.0, 0.2, 0.1]}
    found = judged(expected(rows=["a", "b", "c"]), stored_of(cells))
    assert (found.answer, found.by_means, found.steps) == ("agrees", 3, 3)
    assert found.contrast == pytest.approx((4.0 + 4.0 + 8.0) / 3)
    turned = judged(expected(rows=["b", "a", "c"]), stored_of(cells))
    assert turned.contrast == pytest.approx((4.0 + 8.0 - 4.0) / 3)
    assert (turned.answer, turned.reversed) == ("disagrees", 1)


def test_what_lies_within_a_point_or_half_of_the_papers_is_absent() -> None:
    cells = {"a x": [5.4, 5.5, 5.3], "b x": [5.0, 5.0, 5.0]}
    stored = stored_of(cells)
    found = judged(expected(rows=["a", "b"]), stored)
    assert (found.answer, found.small) == ("absent", 1.0)  # though 0.4 is significant
    paper = {"local": {"a": {"x": 50.2}, "b": {"x": 50.0}}}
    found = judge(expected(rows=["a", "b"]), plan_of(paper=paper), stored)
    assert found.answer == "agrees"
    assert found.small == pytest.approx(0.1)


def test_about_so_many_seeds_decide() -> None:
    """A mean of 2 and a spread of 1.73: t of 3 over the root of 5 is 2.15, of 6 1.82."""
    stored = stored_of({"a x": [0.5, 1.5, 4.0], "b x": [0.0, 0.0, 0.0]})
    found = judged(expected(rows=["a", "b"]), stored)
    assert (found.answer, found.contrast, found.needed) == ("open", 2.0, 6)


def test_what_was_not_run_is_open() -> None:
    one = expected(rows=["a", "b"])
    assert judged(one, stored_of({"a x": [9.0, 9.1]})) == Judgement("open", steps=1)
    single = stored_of({"a x": [9.0], "b x": [1.0]})
    found = judged(one, single)
    assert (found.answer, found.needed, found.by_means) == ("open", None, 1)
    assert judged(expected(rows=["a", "b"], columns=["z*"]), single).steps == 0


def test_seeds_are_paired() -> None:
    """Both rows move with the seed by far more than they differ."""
    cells = {"a x": [11.0, 21.0, 31.0], "b x": [9.0, 19.1, 28.9]}
    assert answer(expected(rows=["a", "b"]), stored_of(cells)) == "agrees"


def test_the_paired_interval_by_hand() -> None:
    """A spread of 1 over three seeds, 2 degrees of freedom, t = 4.303: 2.484."""
    lower = {"b x": [0.0, 0.0, 0.0]}
    for gap, said in ((2.48, "open"), (2.49, "agrees")):
        cells = {"a x": [gap - 1, gap, gap + 1], **lower}
        assert answer(expected(rows=["a", "b"]), stored_of(cells)) == said


def test_fewer_than_three_seeds_or_no_spread_say_nothing() -> None:
    """Equal differences come of chance, too: of coarse numbers, 1 in 13 at two seeds."""
    two = {"a x": [9.0, 9.1], "b x": [5.0, 5.2], "c x": [5.0, 5.1]}
    same = {"a x": [9.0, 9.0, 9.0], "b x": [5.0, 5.0, 5.0], "c x": [4.0, 4.0, 4.0]}
    hidden = {"a x": [9.0, 9.001, 9.002], "b x": [5.0, 5.0, 5.0]}
    for cells in (two, same, hidden):
        stored = stored_of(cells)
        for rows in (["a", "b"], ["b", "a"]):
            assert answer(expected(rows=rows), stored) == "open"
        within = judged(expected(rows=["a", "b"], within=9.0), stored)
        assert (within.answer, within.by_means) == ("open", 1)


def test_bytes_are_no_chance() -> None:
    stored = stored_of({"a x": [9.0] * 3, "b x": [5.0] * 3}, metric=SENT)
    assert answer(expected(rows=["a", "b"], metric=SENT), stored) == "agrees"
    assert answer(expected(rows=["b", "a"], metric=SENT), stored) == "disagrees"
    equal = stored_of({"a x": [5.0] * 3, "b x": [5.0] * 3}, metric=SENT)
    assert answer(expected(rows=["a", "b"], metric=SENT), equal) == "disagrees"


def test_of_differences_by_chance_few_are_beyond_it() -> None:
    """Right answers of 50 questions, both rows at 0.9: 5 % at most in either way."""
    draws = np.random.default_rng(1).binomial(50, 0.9, (400, 2, 3)) * 2.0
    one, stored, said = expected(rows=["a", "b"]), stored_of(SURE), []
    for upper, lower in draws:
        cells = {
            (row, "x", "local", "last"): StoredCell(dict(enumerate(values.tolist())))
            for row, values in (("a", upper), ("b", lower))
        }
        said.append(answer(one, replace(stored, cells=cells)))
    assert said.count("agrees") + said.count("disagrees") <= 28


def test_another_plan_says_nothing_of_this_one() -> None:
    one, stored = expected(rows=["a", "b"]), stored_of(SURE)
    rows = [{"label": label, "trainer": "promptfl"} for label in ("a", "b", "c")]
    renamed = [{"label": "z"}, {"label": "y"}]
    for changes in (
        {"seeds": [1, 2]},
        {"over": "last10"},
        {"scenario": "server-aggregate"},
        {"fields": {"clients": 3}},
        {"settings": {"epochs": 9}},
        {"rows": [{**rows[0], "settings": {"epochs": 9}}, *rows[1:]]},
        {"rows": [{**rows[0], "trainer": "fedotp"}, *rows[1:]]},
        {"columns": [{"label": "x", "fields": {"shots": 3}}]},
        {"columns": renamed},
    ):
        found = judge(one, plan_of(**changes), stored)
        assert found == Judgement("another plan ran", steps=found.steps), changes
    same = plan_of(title="other", columns=[{"label": "x"}], settings={"rank": 3})
    assert judge(one, same, stored).answer == "agrees"  # promptfl has no rank
    other_row = plan_of(rows=[*rows[:2], {"label": "c", "trainer": "fedotp"}])
    assert judge(one, other_row, stored).answer == "agrees"


def test_a_column_that_did_not_run_leaves_it_open() -> None:
    stored = StoredTable(plan_of(columns=[{"label": "x"}]), stored_of(SURE).cells)
    found = judge(expected(rows=["a", "b"], columns=["x*"]), plan_of(), stored)
    assert (found.answer, found.ran, found.steps, found.needed) == ("open", 1, 2, None)
    found = judge(expected(rows=["b", "a"], columns=["x*"]), plan_of(), stored)
    assert (found.answer, found.reversed) == ("disagrees", 1)
    assert in_numbers(found) == (
        "-4.0 [-4.4, -3.6]; 0 of 2 in the means, 1 reversed; 1 of 2 run"
    )


def test_expectations_of_a_row_share_their_level() -> None:
    stored = stored_of({"a x": [1.0, 1.1, 1.2], "b x": [2.0, 2.4, 2.0]})
    one = expected(rows=["a", "b"])
    assert judge(one, stored.plan, stored, 1).answer == "disagrees"
    assert judge(one, stored.plan, stored, 4, 4).answer == "open"


def test_cells_within_points_and_times() -> None:
    stored = stored_of(SURE)
    assert answer(expected(rows=["b", "c"], within=1.0), stored) == "agrees"
    assert answer(expected(rows=["a", "b"], within=1.0), stored) == "disagrees"
    assert answer(expected(rows=["a", "b"], times=1.5), stored) == "agrees"
    assert answer(expected(rows=["a", "b"], times=2.0), stored) == "disagrees"
    assert answer(expected(rows=["b", "c"], times=0.9), stored) == "agrees"


def test_columns_are_patterns_or_an_order_of_their_own() -> None:
    cells = {f"{row} {column}": [value, value + 0.1, value + more]
             for row, value, more in (("a", 9.0, 0.2), ("b", 5.0, 0.3))
             for column in ("x", "x2")}  # fmt: skip
    stored = stored_of({**cells, "a y": [1.0, 1.1, 1.2], "b y": [3.0, 3.1, 3.3]})
    assert judged(expected(rows=["a", "b"], columns=["x*"]), stored).steps == 2
    assert answer(expected(rows=["a", "b"], columns=["*"]), stored) == "disagrees"
    falling = expected(row="a", columns=["x", "y"])
    moved = {"a x": [9.0, 9.1, 9.3], "a y": [1.0, 1.1, 1.2]}
    assert answer(falling, stored_of(moved)) == "agrees"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "of rows or of a row"),
        ({"row": "a", "rows": ["a", "b"]}, "of rows or of a row"),
        ({"rows": ["a"]}, "compares two or more"),
        ({"row": "a", "columns": ["x"]}, "compares two or more"),
        ({"rows": ["a", "b"], "within": 0}, "greater than 0"),
        ({"rows": ["a", "b", "c"], "within": 1}, "within compares two"),
    ],
)
def test_an_expectation_that_is_none_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        expected(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"of": "q"}, "'q', and there are p"),
        ({"rows": ["a", "d"]}, "names 'd'"),
        ({"metric": "mix"}, "names 'mix'"),
        ({"columns": ["z*"]}, "columns that are none: z"),
        ({"columns": ["y"]}, "compares no cell: a, y"),
    ],
)
def test_an_expectation_of_another_plan_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    one = {"of": "p", "says": "s", "rows": ["a", "b"], **changes}
    columns = [{"label": "x"}, {"label": "y", "only_for": ["b", "c"]}]
    with pytest.raises(ValueError, match=says):
        plan_of(reproduces=["p"], expects=[one], columns=columns)
