import json
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit_tools.tables.matrix import (
    BEGIN,
    END,
    MATRIX_PAGE,
    as_markdown,
    matrix_rows,
    write_between,
)
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.stored import read_stored
from privaudit_tools.tables.table import make_table
from privaudit_tools.tables.utility_table import write_utility_table
from tests.places import RESULT_TABLES, ROOT

TABLES = ROOT / "docs" / "tables"


def test_the_matrix_of_the_results_is_current() -> None:
    """privaudit table docs/tables --matrix --into docs/results/tables."""
    page = (RESULT_TABLES / MATRIX_PAGE).read_text(encoding="utf-8")
    between = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert between == as_markdown(matrix_rows(TABLES), "../../tables")


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
    assert "| 3 | yes | a is b (1 of 1 significant, 1 in the means) |" in after
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
    from privaudit_tools.tables.plan import read_plan

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
