import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privaudit.evaluation import sweep_runs
from privaudit.execution.jobs import use_threads
from privaudit.runs.run import load_run
from privaudit_tools.tables.outcomes import perform, read_metric
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import PlannedRun, schedule


def planned(**fields: Any) -> PlannedRun:
    row = {"label": "a", "trainer": "dp-fpl", "settings": {"epsilon": 8.0}}
    known = {"clients": 2, "rounds": 2, "partition": "pathological"}
    plan = {"title": "t", "seeds": [3], "fields": known | fields, "rows": [row]}
    return schedule(TablePlan.model_validate(plan)).runs[0]


def test_what_is_kept_is_what_the_run_wrote() -> None:
    run = planned()
    outcome = perform(run, None)
    trained = load_run(outcome.run)
    assert outcome.short_hash == run.short_hash == trained.config.short_hash
    assert (outcome.rounds, outcome.averaged) == (2, 2)
    local = [entry["local_accuracy"] for entry in trained.metrics]
    assert outcome.value("local", "last") == local[-1]
    assert outcome.value("local", "last10") == pytest.approx(sum(local) / 2)
    assert outcome.value("neighbour", "last") is not None
    assert outcome.claimed == 8.0
    assert 0 < outcome.certified["released"] <= 8.0  # type: ignore[operator]
    assert outcome.certified["server"] is None


def test_a_run_that_cannot_be_trained_is_an_outcome_that_says_why() -> None:
    """Ten classes do not go round eleven clients: known only when records are split."""
    outcome = perform(planned(clients=11), None)
    assert "there are 10 classes" in outcome.error
    assert not outcome.trace
    assert outcome.value("local", "last") is None


def test_a_bug_is_an_outcome_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise IndexError("of somebody's trainer")

    monkeypatch.setattr(sweep_runs, "train", broken)
    outcome = perform(planned(), None)
    assert outcome.error == "IndexError: of somebody's trainer"
    assert "in broken" in outcome.trace


def test_ctrl_c_is_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_runs, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        perform(planned(), None)


def test_a_finished_run_is_taken_as_it_is(tmp_path: Path) -> None:
    first = perform(planned(), tmp_path)
    written = (tmp_path / first.run / "run.json").stat().st_mtime_ns
    assert perform(planned(), tmp_path) == first
    assert (tmp_path / first.run / "run.json").stat().st_mtime_ns == written


def test_runs_are_trained_on_one_thread_and_the_rest_is_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with use_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_mean_is_over_the_last_ten_rounds_by_hand() -> None:
    rounds = [{"local_accuracy": 0.0}] * 5 + [
        {"local_accuracy": index / 10} for index in range(1, 11)
    ]
    found = read_metric(rounds, "local")
    assert found["last10"] == pytest.approx(0.55)
    assert found["last"] == 1.0


@pytest.mark.parametrize("value", [None, math.nan, math.inf, "0.5"])
def test_what_is_no_number_is_left_out(value: Any) -> None:
    entry = {"mix_accuracy": value}
    assert read_metric([entry], "mix") == {"last10": None, "last": None}
    mixed = read_metric([entry, {"mix_accuracy": 0.5}, {}], "mix")
    assert mixed == {"last10": 0.5, "last": None}
    assert read_metric([], "mix") == {"last10": None, "last": None}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_earlier_rounds_change_nothing(values: list[float]) -> None:
    rounds = [{"local_accuracy": value} for value in values]
    found = read_metric(rounds, "local")
    assert found == read_metric(
        [{"local_accuracy": 0.3}] * 4 + rounds[-10:], "local"
    ) or (len(values) < 10)
    assert found["last10"] is not None
    tail = values[-10:]
    assert min(tail) - 1e-12 <= found["last10"] <= max(tail) + 1e-12
