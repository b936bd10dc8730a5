import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.evaluation.tables.expectations import Expectation
from privaudit.evaluation.tables.matrix import (
    BEGIN,
    END,
    MatrixRow,
    Published,
    as_markdown,
    matrix_rows,
    write_between,
)
from privaudit.evaluation.tables.plan import TablePlan
from privaudit.evaluation.tables.stored import (
    Judgement,
    StoredCell,
    StoredTable,
    judge,
    read_stored,
)
from privaudit.evaluation.tables.table import make_table
from privaudit.report.tables.utility_table import write_utility_table
from tests.places import ROOT

TABLES = ROOT / "docs" / "tables"


def test_the_matrix_of_the_results_is_current() -> None:
    """privaudit table docs/tables --matrix --into docs/results.md."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    between = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert between == as_markdown(matrix_rows(TABLES), "tables")


def test_every_table_and_figure_with_measurements_has_a_plan() -> None:
    rows = matrix_rows(TABLES)
    assert {row.item.paper for row in rows} == {
        "DP-FPL",
        "pFedMoAP",
        "FedRand",
        "FedPT",
    }
    for row in rows:
        has_plans = row.item.measured and not row.is_besides
        assert bool(row.plans) == has_plans, row.item.full_name
    assert {r.item.full_name for r in rows if r.plans} == {
        row.item.full_name for row in rows if row.item.measured
    }
    stored = {path.stem for path in (TABLES / "results").rglob("*.json")}
    shown = {Path(name).stem for row in rows if row.stored for name in row.plans}
    assert shown == stored


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
    assert "x (0 of 1 beyond chance, 1 reversed, 0 by means; 1 of 2 run)" in (
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


def folder_of(tmp_path: Path, name: str = "p table 1") -> Path:
    """Write a plan whose rows are the same run, and what was published."""
    folder = tmp_path / "tables"
    (folder / "results").mkdir(parents=True)
    (folder / "some.toml").write_text(
        f"""title = "t"
        reproduces = ["{name}"]
        seeds = [1, 2, 3]
        metrics = ["local", "megabytes per round"]
        over = "last"
        [fields]
        clients = 2
        rounds = 1
        shots = 4
        tested = 40
        [[rows]]
        label = "a"
        trainer = "zero-shot"
        [[rows]]
        label = "b"
        trainer = "zero-shot"
        [[expects]]
        of = "{name}"
        says = "a is b"
        metric = "megabytes per round"
        rows = ["a", "b"]
        within = 1.0
        """
    )
    (folder / "results" / "published.toml").write_text(
        '[[items]]\npaper = "p"\nname = "table 1"\nshows = "all"\n'
        '[[items]]\npaper = "p"\nname = "figure 1"\nshows = "it"\nmeasured = false\n'
        'besides = "`privaudit y`"\n'
    )
    return folder


def test_what_a_table_writes_is_what_the_matrix_reads(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    before = as_markdown(matrix_rows(folder), "tables")
    assert "[some](tables/some.toml) | not run here |" in before
    assert "**p figure 1**: it | none: no measurement | `privaudit y` |" in before
    table = make_table(_read(folder), folder=tmp_path / "runs")
    write_utility_table(table, folder / "results", "some")
    (row, _) = matrix_rows(folder)
    assert row.stored is not None
    assert row.answer == "yes"
    cell = row.stored.cells["a", "accuracy", "local", "last"]
    assert sorted(cell.by_seed) == [1, 2, 3]
    after = as_markdown([row], "tables")
    assert "| 3 | yes | a is b (1 of 1 beyond chance, 1 by means) |" in after
    path = folder / "some.toml"
    path.write_text(path.read_text().replace("shots = 4", "shots = 5"))
    (row, _) = matrix_rows(folder)
    changed = as_markdown([row], "tables")
    assert "`digits`, by an earlier plan |" in changed
    assert "cannot be known here (another plan ran) | a is b (another plan" in changed
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    assert write_between(page, after)
    assert not write_between(page, after)
    assert page.read_text().startswith(f"before\n{BEGIN}\n\n|")
    assert page.read_text().endswith(f"\n\n{END}\nbehind\n")


def test_what_another_command_ran_is_counted_apart(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with (folder / "results" / "published.toml").open("a") as file:
        file.write('[[items]]\npaper = "p"\nname = "figure 2"\nshows = "more"\n')
        file.write('besides = "`privaudit x`"\n')
    text = as_markdown(matrix_rows(folder), "tables")
    assert "more | none | ran by another command: `privaudit x` |  | cannot" in text
    assert "0 of 2 tables and figures with measurements were run, by 0 plans" in text
    assert "and 1 by another command, whose numbers are held to nothing" in text


def test_the_expectations_of_a_row_are_judged_together(tmp_path: Path) -> None:
    """1.1 below, at an error of 0.17: beyond chance by itself, and not among ten."""
    folder = folder_of(tmp_path)
    path = folder / "some.toml"
    old = path.read_text().replace("within = 1.0", "")
    path.write_text(old.replace('metric = "megabytes per round"', ""))
    plan = _read(folder).model_dump(mode="json", exclude_defaults=True)
    numbers = {"a": [5.0, 5.1, 4.9], "b": [5.8, 6.2, 6.3]}
    cells = [
        {"row": row, "column": "accuracy", "metric": "local", "over": "last", "n": 3,
         "mean": values[1], "sd": None, "failed": 0}
        for row, values in numbers.items()
    ]  # fmt: skip
    runs = [
        {"row": row, "column": "accuracy", "seed": seed, "run": "r", "rounds": 1,
         "seconds": 1.0, "claimed": None, "delta": None, "local_last": value}
        for row, values in numbers.items() for seed, value in enumerate(values, 1)
    ]  # fmt: skip
    content = {"plan": plan, "cells": cells, "runs": runs}
    (folder / "results" / "some.json").write_text(json.dumps(content))
    assert matrix_rows(folder)[0].answer == "no"
    more = '[[expects]]\nof = "p table 1"\nsays = "b is first"\nrows = ["b", "a"]\n'
    with path.open("a") as file:
        file.write("\n".join([more] * 9))
    (row, _) = matrix_rows(folder)
    assert dict(row.judgements)["a is b"].reversed == 0
    assert len(row.judgements) == 10  # though nine say the same
    assert row.answer == "cannot be known here"


def _read(folder: Path) -> TablePlan:
    from privaudit.evaluation.tables.plan import read_plan

    return read_plan(folder / "some.toml")


def test_damage_is_one_clear_line(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{END} {BEGIN}")
    with pytest.raises(ConfigError, match="no place for the matrix"):
        write_between(page, "x")
    page.write_text(f"{BEGIN} {BEGIN} {END}")
    with pytest.raises(ConfigError, match="or several"):
        write_between(page, "x")
    page.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        write_between(page, "x")
    stored = folder / "results" / "some.json"
    contents: list[dict[str, Any]] = [
        {},
        {"plan": {}, "cells": [], "runs": []},
        {"plan": 3},
    ]
    for content in contents:
        stored.write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=r"some\.json is not what"):
            read_stored(stored)
    (folder / "results" / "published.toml").write_text("items = [3]")
    with pytest.raises(ConfigError, match="lists no published tables"):
        matrix_rows(folder)
    with pytest.raises(MissingFileError):
        matrix_rows(tmp_path)


def test_a_plan_of_what_was_not_published_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"some\.toml reproduces 'p table 2'"):
        matrix_rows(folder_of(tmp_path, "p table 2"))


def test_plans_below_a_folder_called_results_are_found(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    moved = tmp_path / "results" / "tables"
    moved.parent.mkdir(exist_ok=True)
    folder.rename(moved)
    assert next(iter(matrix_rows(moved))).plans == ("some.toml",)
