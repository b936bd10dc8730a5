from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError
from privaudit.execution.executors import HERE, Local
from privaudit.runs.run import runs_folder
from privaudit_tools.tables import table as module
from privaudit_tools.tables.outcomes import TableOutcome
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import PlannedRun, schedule
from privaudit_tools.tables.table import UtilityTable, agreeing_pairs, make_table

Value = Callable[[PlannedRun], float | str]

PLAN: dict[str, Any] = {
    "title": "t",
    "seeds": [1, 2, 3],
    "rows": [
        {"label": "a", "trainer": "promptfl"},
        {"label": "b", "trainer": "coop"},
        {"label": "c", "trainer": "zero-shot", "skip_columns": ["two"]},
    ],
    "columns": [{"label": "one"}, {"label": "two", "fields": {"clients": 2}}],
    "paper": {"local": {"a": {"one": 90}, "b": {"one": 80}, "c": {"one": 70}}},
}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., UtilityTable]:
    """Make tables of made-up runs: a text is an error."""

    def build(value: Value, progress: Any = None, **changes: Any) -> UtilityTable:
        def fake(_: Any, planned: Any, *__: Any) -> Iterator[Any]:
            for run in planned.runs:
                found = value(run)
                if isinstance(found, str):
                    yield run, TableOutcome(run.short_hash, error=found)
                else:
                    values: Any = {"local": {"last10": found, "last": 0.5}}
                    yield run, TableOutcome(run.short_hash, "r", 4, 4, 1.0, values)

        monkeypatch.setattr(module, "_outcomes", fake)
        return make_table(TablePlan.model_validate(PLAN | changes), progress=progress)

    return build


def cell_of(table: UtilityTable, row: int, column: int, over: Any = "last10") -> Any:
    plan = table.plan
    return table.cell(plan.rows[row], plan.columns[column], "local", over)


def test_mean_spread_and_interval_over_seeds_by_hand(
    make: Callable[..., UtilityTable],
) -> None:
    """0.5, 0.6, 0.7: mean 60, spread 10, and 60 ± 4.3027 · 10 / √3 by Student's t."""
    table = make(lambda run: 0.4 + run.fields["seed"] / 10)
    cell = cell_of(table, 0, 0)
    assert cell.mean.value == pytest.approx(60)
    assert cell.spread == pytest.approx(10)
    assert cell.mean.low == pytest.approx(60 - 24.841, abs=1e-3)
    assert cell.mean.n == (3,)
    assert cell.paper.mean == 90
    assert cell_of(table, 0, 0, "last").mean.value == pytest.approx(50)
    assert cell_of(table, 2, 1) is None


def test_a_failed_run_is_counted_in_its_cell_and_named(
    make: Callable[..., UtilityTable],
) -> None:
    lines: list[str] = []
    table = make(
        lambda run: "no room" if run.label == "b, one, seed 2" else 0.5, lines.append
    )
    cell = cell_of(table, 1, 0)
    assert (cell.failed, cell.is_whole, cell.mean.n) == (1, False, (2,))
    assert [label for label, _ in table.failures] == ["b, one, seed 2"]
    assert "8/15 b, one, seed 2: failed: no room" in lines
    assert cell_of(table, 1, 1).is_whole
    assert agreeing_pairs(table, table.plan.columns[0], "local")[1] == 1


@pytest.mark.parametrize(
    ("values", "agree"),
    [
        ({"a": 0.9, "b": 0.8, "c": 0.7}, 3),
        ({"a": 0.7, "b": 0.8, "c": 0.9}, 0),
        ({"a": 0.9, "b": 0.7, "c": 0.8}, 2),
        ({"a": 0.5, "b": 0.5, "c": 0.5}, 0),
    ],
)
def test_pairs_in_the_papers_order_by_hand(
    make: Callable[..., UtilityTable], values: dict[str, float], agree: int
) -> None:
    table = make(lambda run: values[run.label[0]])
    assert agreeing_pairs(table, table.plan.columns[0], "local") == (agree, 3)
    assert agreeing_pairs(table, table.plan.columns[1], "local") == (0, 0)


def test_one_bad_cell_keeps_all_of_them_from_running() -> None:
    rows = [*PLAN["rows"], {"label": "d", "trainer": "coop", "settings": {"k": 1}}]
    with pytest.raises(ConfigError, match="d, one, seed 1"):
        make_table(TablePlan.model_validate(PLAN | {"rows": rows}))
    assert not runs_folder().exists()


SMALL = {
    "title": "t",
    "seeds": [1, 2],
    "fields": {"clients": 2, "rounds": 1, "partition": "pathological"},
    "rows": [
        {"label": "a", "trainer": "zero-shot"},
        {"label": "b", "trainer": "promptfl", "settings": {"epochs": 1}},
    ],
}


def test_a_table_that_was_stopped_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plan = TablePlan.model_validate(SMALL)
    stopped = module._outcomes(plan, schedule(plan), tmp_path, HERE)
    first = [next(stopped), next(stopped)]
    stopped.close()
    kept = {o.run: (tmp_path / o.run / "run.json").stat().st_mtime_ns for _, o in first}
    table = make_table(plan, folder=tmp_path)
    assert len(list(tmp_path.glob("*/run.json"))) == 4
    for name, written in kept.items():
        assert (tmp_path / name / "run.json").stat().st_mtime_ns == written
    again = make_table(plan, folder=tmp_path)
    assert again.outcomes == table.outcomes


@pytest.mark.slow
def test_processes_give_the_same_numbers_as_none(tmp_path: Path) -> None:
    plan = TablePlan.model_validate(SMALL)
    here = make_table(plan, folder=tmp_path / "here")
    there = make_table(plan, folder=tmp_path / "there", executor=Local(2))
    assert not there.failures
    for digest, outcome in here.outcomes.items():
        assert there.outcomes[digest].values == outcome.values
        assert there.outcomes[digest].run == outcome.run
