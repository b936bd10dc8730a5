from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privaudit_tools.tables import table as module
from privaudit_tools.tables.by_need import open_expectations, pieces_by_need
from privaudit_tools.tables.outcomes import TableOutcome
from privaudit_tools.tables.pieces import Piece
from privaudit_tools.tables.plan import TablePlan
from privaudit_tools.tables.schedule import PlannedRun
from privaudit_tools.tables.stored import judge, read_stored
from privaudit_tools.tables.table import make_table
from privaudit_tools.tables.utility_table import write_utility_table

PLAN: dict[str, Any] = {
    "title": "t",
    "seeds": [1, 2, 3, 4, 5, 6, 7, 8],
    "looks": [3, 5, 8],
    "reproduces": ["p"],
    "rows": [
        {"label": "a (new)", "trainer": "promptfl"},
        {"label": "b", "trainer": "coop"},
        {"label": "c", "trainer": "pfedmoap"},
    ],
    "columns": [{"label": "x"}, {"label": "y", "fields": {"clients": 2}}],
    "expects": [
        {"of": "p", "says": "a above b", "rows": ["a (new)", "b"], "columns": ["x"]},
        {"of": "p", "says": "b above c", "rows": ["b", "c"], "columns": ["y"]},
    ],
}
Share = Callable[[PlannedRun], float]
Made = list[tuple[str, int]]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Share], Made]:
    """Make runs up by need, and return all that were trained, as they were."""
    trained: Made = []

    def run_all(share: Share, **changes: Any) -> Made:
        def fake(_: Any, planned: Any, *__: Any) -> Iterator[Any]:
            for run in planned.runs:
                trained.append((run.label.rpartition(",")[0], run.fields["seed"]))
                values: Any = {"local": {"last10": share(run), "last": None}}
                yield run, TableOutcome(run.short_hash, "r", 4, 4, 1.0, values)

        monkeypatch.setattr(module, "_outcomes", fake)
        plan = TablePlan.model_validate(PLAN | changes)
        stored = tmp_path / "t.json"
        for piece in pieces_by_need(plan, stored):
            made = make_table(
                plan, piece=None if piece == Piece() else piece, stored=stored
            )
            write_utility_table(made, tmp_path, "t")
        return trained

    return run_all


def clear(run: PlannedRun) -> float:
    """Each row ten points above the next, and a little noise."""
    place = {"promptfl": 0.8, "coop": 0.7, "pfedmoap": 0.6}[run.trainer]
    return place + 0.001 * (run.fields["seed"] * len(run.trainer) % 5)


def noisy(run: PlannedRun) -> float:
    """Clear, but for coop with two clients, which is anywhere."""
    is_noisy = run.trainer == "coop" and run.fields.get("clients") == 2
    return 0.3 + 0.1 * run.fields["seed"] if is_noisy else clear(run)


def test_what_is_decided_at_the_first_look_takes_no_further_seeds(train: Any) -> None:
    assert {seed for _, seed in train(clear)} == {1, 2, 3}


def test_what_is_open_alone_gets_further_seeds_up_to_the_last(
    train: Any, tmp_path: Path
) -> None:
    later = {one for one in train(noisy) if one[1] > 3}
    assert {seed for _, seed in later} == {4, 5, 6, 7, 8}
    assert {label for label, _ in later} == {"b, y", "c, y"}
    plan, stored = TablePlan.model_validate(PLAN), read_stored(tmp_path / "t.json")
    assert [one.says for one in open_expectations(plan, stored)] == ["b above c"]
    counts = {place[:2]: len(cell.by_seed) for place, cell in stored.cells.items()}
    assert (counts["a (new)", "x"], counts["b", "y"]) == (3, 8)


def test_without_looks_all_is_trained_once(train: Any) -> None:
    assert len(train(clear, looks=[])) == 3 * 2 * 8


def test_each_look_has_its_part_of_the_error(train: Any, tmp_path: Path) -> None:
    """Three looks at 95 %: intervals as three expectations would have without any."""
    train(clear)
    stored = read_stored(tmp_path / "t.json")
    plan, without = (
        TablePlan.model_validate(PLAN | {"looks": looks}) for looks in ([3, 5, 8], [])
    )
    alone = type(stored)(without, stored.cells)
    (one, _) = plan.expects
    assert judge(one, plan, stored, 2).half == judge(one, without, alone, 6).half
    assert judge(one, without, stored, 2).half == judge(one, plan, stored, 2).half


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"looks": [3, 5]}, "do not rise to the number of seeds, 8"),
        ({"looks": [5, 3, 8]}, "do not rise"),
        ({"looks": [2, 8]}, "a look takes 3 seeds and expectations"),
        ({"expects": []}, "there are 3 and 0"),
    ],
)
def test_looks_that_decide_nothing_are_refused(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        TablePlan.model_validate(PLAN | changes)
