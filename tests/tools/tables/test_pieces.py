import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.core.portable_bits import Provenance
from privaudit_tools.tables import table as module
from privaudit_tools.tables.outcomes import TableOutcome
from privaudit_tools.tables.pieces import Piece, read_records, stored_outcomes
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.stored import read_stored
from privaudit_tools.tables.table import UtilityTable, make_table
from privaudit_tools.tables.utility_table import (
    as_markdown,
    stored_markdown,
    write_utility_table,
)

PLAN: dict[str, Any] = {
    "title": "t",
    "seeds": [1, 2],
    "rows": [
        {"label": "a", "trainer": "promptfl"},
        {"label": "b (new)", "trainer": "coop"},
    ],
    "columns": [
        {"group": "g", "label": "x"},
        {"group": "g", "label": "y", "fields": {"clients": 2}},
    ],
}
ABSENT = object()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make runs up, and return the labels of those that were trained, as they are."""
    labels: list[str] = []

    def fake(_: Any, planned: Any, *__: Any) -> Iterator[Any]:
        for run in planned.runs:
            labels.append(run.label)
            share = 0.5 + 0.01 * len(labels)
            values: Any = {"local": {"last10": share, "last": None}}
            proved = {"released": 2.5, "server": None}
            key, counts = run.short_hash, (4, 4, 1.0)
            yield (
                run,
                TableOutcome(
                    key, "r", *counts, values, 1.0, 1e-5, proved, "one record"
                ),
            )

    monkeypatch.setattr(module, "_outcomes", fake)
    return labels


def made(plan: dict[str, Any], folder: Path, piece: Piece | None) -> UtilityTable:
    table = make_table(
        TablePlan.model_validate(plan), piece=piece, stored=folder / "t.json"
    )
    write_utility_table(table, folder, "t")
    return table


def test_a_piece_is_trained_and_the_rest_is_taken_as_stored(
    tmp_path: Path, trained: list[str]
) -> None:
    first = made(PLAN, tmp_path, Piece(columns="x$", seeds=(1,)))
    assert trained == ["a, g: x, seed 1", "b (new), g: x, seed 1"]
    assert [row.label for row in first.shown.plan.rows] == ["a", "b (new)"]
    assert [column.label for column in first.shown.plan.columns] == ["x"]
    trained.clear()
    both = made(PLAN, tmp_path, Piece(rows=r"\(new\)", columns="y"))
    assert trained == ["b (new), g: y, seed 1", "b (new), g: y, seed 2"]
    assert len(both.outcomes) == 4
    for digest, outcome in first.outcomes.items():
        kept = both.outcomes[digest]
        assert kept.value("local", "last10") == pytest.approx(
            outcome.value("local", "last10")
        )
        assert replace(kept, values={}) == replace(outcome, values={})
    said = (tmp_path / "t.md").read_text()
    assert "- Run: 3 of the plan's 4 cells, with 1 to 2 seeds each." in said
    assert "| a | 51.00 |  |" in said
    content = json.loads((tmp_path / "t.json").read_text())
    assert len(content["runs"]) == 4
    assert content["plan"]["seeds"] == [1, 2]


def test_what_is_expected_after_a_part_ran_is_not_stored_as_if_before(
    tmp_path: Path, trained: list[str]
) -> None:
    """A page marks it as late, until all cells are run anew."""

    def expected() -> list[str]:
        return [
            one["says"]
            for one in json.loads((tmp_path / "t.json").read_text())["plan"]["expects"]
        ]

    said = {"of": "table 1", "rows": ["a", "b (new)"]}
    first = {**said, "says": "a is above b on x", "columns": ["g: x"]}
    second = {**said, "says": "a is above b on y", "columns": ["g: y"]}
    other = {"reproduces": ["table 1"]}
    made(PLAN | other | {"expects": [first]}, tmp_path, None)
    made(PLAN | other | {"expects": [first, second]}, tmp_path, Piece(columns="x$"))
    assert expected() == [first["says"]]
    made(PLAN | other | {"expects": [first, second]}, tmp_path, None)
    assert expected() == [first["says"], second["says"]]


def test_a_table_by_need_can_be_read_when_all_it_expected_is_replaced(
    tmp_path: Path, trained: list[str]
) -> None:
    said = {"of": "table 1", "says": "a is above b", "rows": ["a", "b (new)"]}
    plan = PLAN | {"reproduces": ["table 1"], "seeds": [1, 2, 3], "looks": [3]}
    made(plan | {"expects": [said | {"columns": ["g: x"]}]}, tmp_path, None)
    later = plan | {"expects": [said | {"columns": ["g: y"]}]}
    made(later, tmp_path, Piece(columns="x$"))
    assert read_records(tmp_path / "t.json").plan.expects == ()


@pytest.mark.parametrize("place", ["data://pics", "$PRIVAUDIT_DATA/pics"])
def test_what_is_stored_outlives_its_data(
    tmp_path: Path,
    trained: list[str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """A piece of other cells leaves it as it is, the digest too."""
    monkeypatch.setenv("PRIVAUDIT_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path / "cache"))
    pics = tmp_path / "sets" / "pics"
    pics.mkdir(parents=True)
    (pics / "a.txt").write_text("a")
    fields = {"dataset": "oxford-pets", "data": place}
    columns = [{"label": "one"}, {"label": "two", "fields": fields}]
    plan = PLAN | {"columns": columns}
    made(plan, tmp_path, None)
    before = runs_of(tmp_path, "two")
    (pics / "a.txt").unlink()
    pics.rmdir()
    trained.clear()
    table = made(plan, tmp_path, Piece(columns="one", seeds=(1,)))
    assert trained == ["a, one, seed 1", "b (new), one, seed 1"]
    assert runs_of(tmp_path, "two") == before
    assert len(before) == 4
    assert len(table.outcomes) == 8
    content = json.loads((tmp_path / "t.json").read_text())
    content["runs"] = [{**run, "digest": ""} for run in content["runs"]]
    (tmp_path / "t.json").write_text(json.dumps(content))
    made(plan, tmp_path, Piece(columns="one", seeds=(1,)))
    numbers = [run["local_last10"] for run in before]
    assert [run["local_last10"] for run in runs_of(tmp_path, "two")] == numbers


def test_what_is_trained_again_takes_the_place_of_what_is_stored(
    tmp_path: Path, trained: list[str]
) -> None:
    """Whatever its digest was, as that of an earlier version."""
    made(PLAN, tmp_path, None)
    content = json.loads((tmp_path / "t.json").read_text())
    before = [{**r, "digest": f"old {n}"} for n, r in enumerate(content["runs"])]
    (tmp_path / "t.json").write_text(json.dumps(content | {"runs": before}))
    made(PLAN, tmp_path, Piece(columns="x"))
    x, y = (runs_of(tmp_path, f"g: {column}") for column in "xy")
    assert y == [run for run in before if run["column"] == "g: y"]
    assert [run["local_last10"] for run in x] == [59.0, 60.0, 61.0, 62.0]
    assert not any(run["digest"].startswith("old") for run in x)


def runs_of(folder: Path, column: str) -> list[dict[str, Any]]:
    """Return the stored runs of a column."""
    runs = json.loads((folder / "t.json").read_text())["runs"]
    return [run for run in runs if run["column"] == column]


def test_the_whole_plan_takes_nothing_that_is_stored(
    tmp_path: Path, trained: list[str]
) -> None:
    made(PLAN, tmp_path, None)
    trained.clear()
    made(PLAN, tmp_path, None)
    assert len(trained) == 8
    assert "Run: " not in (tmp_path / "t.md").read_text()


def test_stored_cells_that_the_plan_trains_otherwise_are_left_out(
    tmp_path: Path, trained: list[str]
) -> None:
    made(PLAN, tmp_path, None)
    rows = [PLAN["rows"][0], PLAN["rows"][1] | {"settings": {"epochs": 2}}]
    plan = TablePlan.model_validate(PLAN | {"rows": rows, "seeds": [1, 2, 3]})
    kept = stored_outcomes(tmp_path / "t.json", plan)
    assert set(kept) == {("a", f"g: {column}", s) for column in "xy" for s in (1, 2)}


@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (Piece(rows="c"), "in no cell of the plan. It has the rows a, b"),
        (Piece(columns="("), "no regular expression"),
    ],
)
def test_a_piece_that_is_none_is_refused(
    tmp_path: Path, trained: list[str], piece: Piece, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        made(PLAN, tmp_path, piece)
    assert not trained


def test_means_without_their_runs_are_not_lost(
    tmp_path: Path, trained: list[str]
) -> None:
    made(PLAN, tmp_path, None)
    path = tmp_path / "t.json"
    content = json.loads(path.read_text())
    before = json.dumps(content | {"runs": []})
    path.write_text(before)
    with pytest.raises(ConfigError, match="is over 2 seeds, and it has runs of 0"):
        made(PLAN, tmp_path, Piece("a"))
    assert path.read_text() == before
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not what `privaudit table` writes"):
        made(PLAN, tmp_path, Piece("a"))


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("runs", {"local_last": 1.0}, r"the run of a, g: x, 1 is there 2 times"),
        ("cells", {"paper": "1.0"}, r"number of a, g: x, local, last10 is there 2"),
    ],
)
def test_what_is_stored_twice_is_refused(
    tmp_path: Path, trained: list[str], kind: str, changes: dict[str, Any], says: str
) -> None:
    made(PLAN, tmp_path, None)
    path = tmp_path / "t.json"
    content = json.loads(path.read_text())
    content[kind].append({**content[kind][0], **changes})
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=says):
        read_records(path)


def test_a_run_that_failed_is_shown_until_it_is_trained(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = module._outcomes

    def failing(*asked: Any) -> Iterator[Any]:
        for run, done in fake(*asked):
            no = TableOutcome(run.short_hash, error="no")
            yield run, no if run.label == "a, g: x, seed 1" else done

    monkeypatch.setattr(module, "_outcomes", failing)
    made(PLAN, tmp_path, Piece(columns="x"))
    monkeypatch.setattr(module, "_outcomes", fake)
    page = as_markdown(made(PLAN, tmp_path, Piece(columns="y")))
    stored = read_stored(tmp_path / "t.json")
    assert ("a", "g: x") not in stored.spots  # nothing is held to it
    for text in (page, stored_markdown(stored)):
        assert "| a | **1 of 2 failed** | 56" in text
    assert "## Runs that failed\n\n- a, g: x, seed 1: no\n" in page
    assert "failed" not in as_markdown(made(PLAN, tmp_path, Piece(columns="x")))


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("cells", "sd", "x"),
        ("cells", "n", math.inf),
        ("cells", "n", 0),
        ("cells", "mean", math.nan),
        ("cells", "row", ["a"]),
        ("cells", "column", "none"),
        ("cells", "metric", "nope"),
        ("cells", "paper", "many"),
        ("runs", "row", None),
        ("runs", "run", None),
        ("runs", "rounds", None),
        ("runs", "claimed", math.nan),
        ("runs", "local_last10", "9"),
        *(("runs", key, ABSENT) for key in ("row", "run", "rounds", "claimed")),
    ],
)
def test_a_damaged_cell_or_run_is_one_clear_line(
    tmp_path: Path, trained: list[str], kind: str, key: str, value: object
) -> None:
    made(PLAN, tmp_path, None)
    path = tmp_path / "t.json"
    content = json.loads(path.read_text())
    content[kind][0][key] = value
    if value is ABSENT:
        del content[kind][0][key]
    path.write_text(json.dumps(content))
    plan = TablePlan.model_validate(PLAN)
    with pytest.raises(ConfigError, match="not what `privaudit table` writes") as said:
        read_stored(path)
    assert "\n" not in str(said.value)
    assert (f"runs.0.{key}: Field required" in str(said.value)) == (value is ABSENT)
    if key != "paper":  # which is not taken from there
        with pytest.raises(ConfigError, match=re.escape(str(said.value))):
            stored_outcomes(path, plan)


def test_each_run_keeps_what_it_was_computed_with(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells are trained at different times; a file of earlier versions says nothing."""
    made(PLAN, tmp_path, None)
    content = json.loads((tmp_path / "t.json").read_text())
    for run in content["runs"]:
        assert (run.pop("bits"), run.pop("processor")) == ("", "")
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert not any(one.bits for one in read_stored(tmp_path / "t.json").computed)
    here = Provenance("portable bits of torch 2", "Xeon")
    fake = module._outcomes

    def stated(*asked: Any) -> Iterator[Any]:
        for run, outcome in fake(*asked):
            yield run, replace(outcome, computed=here)

    monkeypatch.setattr(module, "_outcomes", stated)
    made(PLAN, tmp_path, Piece(columns="y"))
    said = {(run["column"], run["processor"]) for run in runs_of(tmp_path, "g: y")}
    assert said == {("g: y", "Xeon")}
    table = read_stored(tmp_path / "t.json")
    counts = f"bits that are not stated (4 runs); {here} (4 runs)."
    assert f"Computed in {counts}" in (tmp_path / "t.md").read_text()
    assert f"**Computed in** {counts}" in stored_markdown(table)
    assert "portable bits of torch 2,Xeon" in (tmp_path / "t-runs.csv").read_text()
