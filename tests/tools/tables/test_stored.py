"""What stored numbers say of a paper's: steps, intervals and answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privaudit_tools.tables.expectations import Expectation
from privaudit_tools.tables.matrix import MatrixRow, Published, as_markdown
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


SENT = "megabytes per round"
SURE = {"a x": [9.0, 9.1, 9.2], "b x": [5.2, 5.0, 5.1], "c x": [5.1, 5.0, 5.2]}


def test_an_order_holds_is_reversed_or_cannot_be_known() -> None:
    stored = stored_of(SURE)
    assert judged(expected(rows=["a", "b"]), stored).answer == "yes"
    assert judged(expected(rows=["b", "a"]), stored).answer == "no"
    open_ = judged(expected(rows=["a", "b", "c"]), stored)
    assert (open_.answer, open_.held, open_.steps) == ("cannot be known here", 1, 2)
    first = judged(expected(rows=["a", "b", "c"], order="first"), stored)
    assert (first.answer, first.held) == ("yes", 2)


def test_what_was_not_run_cannot_be_known() -> None:
    one = expected(rows=["a", "b"])
    assert judge(one, plan_of(), None).answer == "cannot be known here"
    assert judged(one, stored_of({"a x": [9.0, 9.1]})).answer == "cannot be known here"
    single = stored_of({"a x": [9.0], "b x": [1.0]})
    found = judged(one, single)
    assert (found.answer, found.held, found.by_means) == ("cannot be known here", 0, 1)
    assert judged(expected(rows=["a", "b"], columns=["z*"]), single).steps == 0


def test_seeds_are_paired() -> None:
    """Both rows move with the seed by far more than they differ."""
    cells = {"a x": [10.0, 20.0, 30.0], "b x": [9.0, 19.1, 28.9]}
    assert judged(expected(rows=["a", "b"]), stored_of(cells)).answer == "yes"


def test_the_paired_interval_by_hand() -> None:
    """A spread of 1 over three seeds, 2 degrees of freedom, t = 4.303: 2.484."""
    lower = {"b x": [0.0, 0.0, 0.0]}
    for gap, answer in ((2.48, "cannot be known here"), (2.49, "yes")):
        cells = {"a x": [gap - 1, gap, gap + 1], **lower}
        assert judged(expected(rows=["a", "b"]), stored_of(cells)).answer == answer


def test_fewer_than_three_seeds_or_no_spread_say_nothing() -> None:
    """Equal differences come of chance, too: of coarse numbers, 1 in 13 at two seeds."""
    two = {"a x": [9.0, 9.1], "b x": [5.0, 5.2], "c x": [5.0, 5.1]}
    same = {"a x": [9.0, 9.0, 9.0], "b x": [5.0, 5.0, 5.0], "c x": [4.0, 4.0, 4.0]}
    hidden = {"a x": [9.0, 9.001, 9.002], "b x": [5.0, 5.0, 5.0]}
    for cells in (two, same, hidden):
        stored = stored_of(cells)
        for rows in (["a", "b"], ["b", "a"]):
            found = judged(expected(rows=rows), stored)
            assert (found.answer, found.held) == ("cannot be known here", 0)
        within = judged(expected(rows=["a", "b"], within=9.0), stored)
        assert (within.answer, within.by_means) == ("cannot be known here", 1)


def test_bytes_are_no_chance() -> None:
    stored = stored_of({"a x": [9.0] * 3, "b x": [5.0] * 3}, metric=SENT)
    assert judged(expected(rows=["a", "b"], metric=SENT), stored).answer == "yes"
    assert judged(expected(rows=["b", "a"], metric=SENT), stored).answer == "no"


def test_of_differences_by_chance_few_are_beyond_it() -> None:
    """Right answers of 50 questions, both rows at 0.9: 5 % at most in either way."""
    draws = np.random.default_rng(1).binomial(50, 0.9, (400, 2, 3)) * 2.0
    one, stored, said = expected(rows=["a", "b"]), stored_of(SURE), []
    for upper, lower in draws:
        cells = {
            (row, "x", "local", "last"): StoredCell(dict(enumerate(values.tolist())))
            for row, values in (("a", upper), ("b", lower))
        }
        said.append(judged(one, replace(stored, cells=cells)).answer)
    assert 400 - said.count("cannot be known here") <= 28


def test_another_plan_says_nothing_of_this_one() -> None:
    one, stored = expected(rows=["a", "b"]), stored_of(SURE)
    another = "cannot be known here (another plan ran)"
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
        assert (found.answer, found.held, found.by_means) == (another, 0, 0), changes
    same = plan_of(title="other", columns=[{"label": "x"}], settings={"rank": 3})
    assert judge(one, same, stored).answer == "yes"  # promptfl has no rank
    other_row = plan_of(rows=[*rows[:2], {"label": "c", "trainer": "fedotp"}])
    assert judge(one, other_row, stored).answer == "yes"


def test_a_column_that_did_not_run_does_not_hold() -> None:
    stored = StoredTable(plan_of(columns=[{"label": "x"}]), stored_of(SURE).cells)
    columns = ["x*"]
    found = judge(expected(rows=["a", "b"], columns=columns), plan_of(), stored)
    assert (found.answer, found.held, found.steps) == ("cannot be known here", 1, 2)
    assert found.ran == 1
    found = judge(expected(rows=["b", "a"], columns=columns), plan_of(), stored)
    assert (found.answer, found.reversed) == ("no", 1)
    row = MatrixRow(
        Published(paper="p", name="t", shows="s"), (), stored, [("x", found)]
    )
    assert "x (0 of 1 significant, 1 reversed, 0 in the means; 1 of 2 run)" in (
        as_markdown([row], "tables")
    )


def test_a_step_is_reversed_at_the_level_of_all_expectations() -> None:
    stored = stored_of({"a x": [1.0, 1.1, 1.2], "b x": [2.0, 2.4, 2.0]})
    one = expected(rows=["a", "b"])
    assert judge(one, stored.plan, stored, 1).answer == "no"
    assert judge(one, stored.plan, stored, 4).answer == "cannot be known here"
    turned = judge(expected(rows=["b", "a"]), stored.plan, stored, 4)
    assert turned.answer == "yes"  # which stays at its own level


def test_cells_within_points_and_times() -> None:
    stored = stored_of(SURE)
    assert judged(expected(rows=["b", "c"], within=1.0), stored).answer == "yes"
    assert judged(expected(rows=["a", "b"], within=1.0), stored).answer == "no"
    assert judged(expected(rows=["a", "b"], times=1.5), stored).answer == "yes"
    assert judged(expected(rows=["a", "b"], times=2.0), stored).answer == "no"
    assert judged(expected(rows=["b", "c"], times=0.9), stored).answer == "yes"


def test_columns_are_patterns_or_an_order_of_their_own() -> None:
    cells = {f"{row} {column}": [value, value + 0.1, value + more]
             for row, value, more in (("a", 9.0, 0.2), ("b", 5.0, 0.3))
             for column in ("x", "x2")}  # fmt: skip
    stored = stored_of({**cells, "a y": [1.0, 1.1, 1.2], "b y": [3.0, 3.1, 3.3]})
    assert judged(expected(rows=["a", "b"], columns=["x*"]), stored).steps == 2
    assert judged(expected(rows=["a", "b"], columns=["*"]), stored).answer == "no"
    falling = expected(row="a", columns=["x", "y"])
    moved = {"a x": [9.0, 9.1, 9.3], "a y": [1.0, 1.1, 1.2]}
    assert judged(falling, stored_of(moved)).answer == "yes"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "of rows or of a row"),
        ({"row": "a", "rows": ["a", "b"]}, "of rows or of a row"),
        ({"rows": ["a"]}, "compares two or more"),
        ({"row": "a", "columns": ["x"]}, "compares two or more"),
        ({"rows": ["a", "b"], "within": 0}, "greater than 0"),
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
    ],
)
def test_an_expectation_of_another_plan_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    one = {"of": "p", "says": "s", "rows": ["a", "b"], **changes}
    with pytest.raises(ValueError, match=says):
        plan_of(reproduces=["p"], expects=[one])
