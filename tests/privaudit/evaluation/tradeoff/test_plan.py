from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.evaluation.tradeoff.plan import cells_of, make_plan, read_sweep_plan
from privaudit.evaluation.tradeoff.sweep import planned_run


def plan(**changes: Any) -> Any:
    asked = {"trainers": ["dp-fpl"], "epsilons": [8.0], "modes": ["sound"]}
    return make_plan({**asked, "seeds": [1, 2], **changes})


def names(**changes: Any) -> list[tuple[str, float | None]]:
    return [(cell.label, cell.epsilon) for cell in cells_of(plan(**changes))]


def test_trainers_budgets_modes_and_varied_values_are_combined() -> None:
    found = names(
        trainers=["promptfl", "dp-fpl"],
        epsilons=[None, 8.0],
        vary={"rank": [2, 4], "rounds": [3, 5]},
    )
    assert found[:2] == [("promptfl, rounds 3", None), ("promptfl, rounds 5", None)]
    assert len(found) == 2 + 2 * 2 * 2
    assert ("dp-fpl, sound, rank 4, rounds 5", 8.0) in found


def test_varied_values_reach_the_runs() -> None:
    (cell,) = cells_of(plan(vary={"rank": ["4"], "rounds": ["7"]}))
    assert cell.settings == {"rank": "4", "mode": "sound", "epsilon": 8.0}
    config = cell.config(3)
    assert (config.rounds, config.seed) == (7, 3)
    assert planned_run(cell, 3).fields == {"rounds": "7", "seed": 3}
    assert planned_run(cell, 3).digest == config.digest


def test_a_parameter_for_all_is_for_those_trainers_that_have_it() -> None:
    first, second = cells_of(
        plan(trainers=["zero-shot", "dp-fpl"], settings={"rank": 2})
    )
    assert first.settings == {}
    assert second.settings["rank"] == 2


def test_a_file_holds_the_same_entries(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'trainers = ["dp-fpl"]\nepsilons = ["none", 8]\nseeds = [1, 2]\n'
        'attack = "lira"\n[vary]\nrank = [2, 4]\nshots = ["none", 5]\n'
        '[fields]\nalpha = 1.0\n'
    )  # fmt: skip
    found = make_plan(read_sweep_plan(path))
    assert found.epsilons == (None, 8.0)
    assert found.vary == {"rank": (2, 4), "shots": (None, 5)}
    assert (found.attack, found.fields) == ("lira", {"alpha": 1.0})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('trainer = ["dp-fpl"]', "'trainer' is no entry. Did you mean 'trainers'?"),
        ('seeds = [1, "x"]', "seeds[2] = 'x': Input should be a valid integer"),
        ("margin = 0", "margin = 0: Input should be greater than 0"),
        ('clients = "few"', "clients = 'few'"),
        ("seeds = [", "is no TOML"),
    ],
)
def test_a_file_that_is_no_plan_says_where(
    text: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_sweep_plan(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        read_sweep_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vary": {"rnak": [2]}}, "varies 'rnak', and .* Did you mean 'rank'"),
        ({"vary": {"epsilon": [2]}}, "epsilon cannot be varied .* Use epsilons"),
        ({"vary": {"seed": [2]}}, "seed cannot be varied by that name. Use seeds"),
        ({"vary": {"rank": []}}, "rank is varied, and has no value"),
        ({"vary": {"rank": [2, 2]}}, "values of rank hold 2 more than once"),
        ({"vary": {"rank": [2, "2"]}}, "are the same runs"),
        ({"vary": {"rank": ["x"]}}, "cannot take rank = 'x'"),
        ({"vary": {"rank": [2]}, "settings": {"rank": 4}}, "for all runs, and is var"),
        ({"vary": {"rounds": [2]}, "fields": {"rounds": 4}}, "for all runs, and is v"),
        ({"settings": {"rnak": 4}}, "settings hold 'rnak'.* Did you mean 'rank'"),
        ({"report_seeds": [2, 3]}, "report seeds hold 2, with which cells are chosen"),
    ],
)
def test_what_no_sweep_could_do_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cells_of(plan(**changes))
