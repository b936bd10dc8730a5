"""Sweeps: their plans, their runs, and federations that others trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from privaudit import Run, load_run
from privaudit.cli.progress import CellDone, Event
from privaudit.core.errors import ConfigError, MissingFileError
from privaudit.evaluation.tradeoff.plan import (
    SweepPlan,
    cells_of,
    make_plan,
    read_sweep_plan,
)
from privaudit.evaluation.tradeoff.sweep import planned_run, sweep, weigh_runs
from privaudit.execution import executors
from privaudit.recording.owner import use_owner
from privaudit.report.sweep import write_sweep
from privaudit.runs.run import runs_folder
from tests.conftest import Cli, refused
from tests.privaudit.recording.small_federation import Linear, record, toss

SMALL = {"rounds": 1, "clients": 2, "test_share": 0.45}


def small_sweep(**changes: Any) -> Any:
    asked: dict[str, Any] = {
        "trainers": ["dp-fpl"],
        "epsilons": [None, 8.0],
        "modes": ["published-paper", "sound"],
        "seeds": [0],
        "shadows": 0,
        "fields": SMALL,
    }
    return sweep(**(asked | changes))


def test_close_budgets_are_two_jobs() -> None:
    plan = make_plan(
        {"trainers": ["dp-fpl"], "epsilons": [1.0000001, 1.0000002], "seeds": [1]}
    )
    names = [planned_run(cell, 1).label for cell in cells_of(plan)]
    assert names == [
        f"{mode}, epsilon 1.000000{last}, seed 1"
        for mode in ("published-paper", "sound")
        for last in (1, 2)
    ]


def test_looks_and_report_have_the_same_processes(tmp_path: Path) -> None:
    pools: list[object] = []

    class Noting:
        def run(self, jobs: Any, **how: Any) -> Any:
            pools.append(executors._WARM.get())
            return executors.HERE.run(jobs, **how)

    sweep(
        ["zero-shot"], seeds=[1], report_seeds=[2, 3, 4, 5, 6], shadows=0, fields=SMALL,
        folder=tmp_path, executor=Noting(),
    )  # fmt: skip
    first, *others = filter(None, pools)
    assert len(others) >= 1
    assert all(one is first for one in pools)


@pytest.mark.slow
def test_each_mode_has_its_own_run_without_noise(tmp_path: Path) -> None:
    """Modes differ without noise too: batches and clipping."""
    found = small_sweep()
    write_sweep(found, tmp_path)
    points = found.points
    assert [(point.mode, point.epsilon) for point in points] == [
        ("published-paper", None),
        ("published-paper", 8.0),
        ("sound", None),
        ("sound", 8.0),
    ]
    assert points[0].local != points[2].local or points[0].auroc != points[2].auroc
    cells = json.loads((tmp_path / "sweep.json").read_text())["cells"]
    assert [cell["reference"] for cell in cells] == [
        None, ["published-paper", None], None, ["sound", None],
    ]  # fmt: skip


def test_fields_hold_for_all_runs_and_each_audit_is_saved() -> None:
    points = small_sweep(
        trainers=["zero-shot", "dp-fpl"], epsilons=[8.0], modes=["sound"]
    ).points
    assert [point.mode for point in points] == ["zero-shot", "dp-fpl, sound"]
    runs = [load_run(file.parent) for file in runs_folder().glob("*/run.json")]
    assert len(runs) == 2
    for run in runs:
        assert run.config.model_dump(include=set(SMALL)) == SMALL
        assert (run.path / "audits" / "prompt-release" / "audit.json").exists()


def test_what_nothing_dominates_is_trained_anew_on_other_seeds() -> None:
    events: list[Event] = []
    found = small_sweep(
        trainers=["zero-shot"],
        seeds=[0, 1],
        report_seeds=[7, 8],
        vary={"alpha": [1.0, 10.0]},
        attack="confidence",
        watcher=events.append,
    )
    assert [cell.seeds for cell in found.reported] == [(7, 8), (7, 8)]
    cells = [event for event in events if isinstance(event, CellDone)]
    assert [cell.done for cell in cells] == [*range(1, 9)]
    assert [cell.total for cell in cells] == [4] * 4 + [8] * 4
    assert {point.attack for point in found.points} == {"confidence"}
    assert found.points[0].success != found.points[0].auroc
    assert found.cost is not None
    assert (found.cost.runs, found.cost.one_seed) == (8, None)
    again = small_sweep(
        trainers=["zero-shot"], seeds=[0, 1], vary={"alpha": [1.0, 10.0]},
        attack="confidence",
    )  # fmt: skip
    assert again.points == found.points  # finished runs, and the same scores


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {
                "attack": "max-renyi",
                "scenario": "black-box-labels",
                "trainers": ["fedotp"],
            },
            "No attack that reads what fedotp gives",
        ),
        ({"attack": "lira"}, "Did you mean|No attack of prompt-release with 0 shadow"),
        ({"fields": {**SMALL, "members": "all"}}, "no non-members to tell members"),
        ({"trainers": ["zero-shot", "lora-fedavg"]}, "Some cells classify and some"),
        ({"epsilons": [1.0, 1.0]}, "The epsilons hold 1.0 more than once"),
        ({"seeds": [3, 4, 3]}, "The seeds hold 3 more than once"),
        ({"modes": ["sound", "sound"]}, "The modes hold sound more than once"),
        ({"trainers": ["dp-fpl"] * 2}, "The trainers hold dp-fpl more than once"),
        ({"seeds": []}, "nothing to sweep"),
        ({"seeds": [1, 2, 3], "until_decided": True}, "Name 6 or more"),
        ({"modes": ["sound", "loud"]}, "cannot take mode = 'loud'"),
        ({"epsilons": [8.0, 0.0]}, "cannot take epsilon = 0.0"),
        ({"fields": {"seed": 3}}, "The field seed = 3 was given for all runs"),
        ({"settings": {"epsilon": 3}}, "The parameter epsilon = 3 was given"),
        ({"fields": {"client": 3}}, "cannot take client = 3"),
        ({"shadows": 2}, "at least 5 are needed"),
        ({"scenario": "prompt-relase"}, "Did you mean 'prompt-release'"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        small_sweep(**changes)
    assert not runs_folder().exists()


PLAN = SweepPlan(scenario="server-reconstruct", shadows=0)
OWNER = "tests.privaudit.recording.linear_owner"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two methods, each on the same two ledgers."""
    folder = tmp_path_factory.mktemp("recorded")
    made = []
    for learns in (True, False):
        for seed in (0, 1):
            place = folder / f"{learns}-{seed}"
            record(place, toss(seed), Linear(learns), trainer=f"learns: {learns}")
            made.append(load_run(place))
    return made


def test_runs_of_one_ledger_are_one_replicate(runs: list[Run]) -> None:
    with use_owner(Linear()):
        found = weigh_runs(runs, PLAN)
    assert [cell.mode for cell in found.cells] == ["learns: True", "learns: False"]
    assert [cell.seeds for cell in found.cells] == [(0, 1), (0, 1)]
    leaks, learns_nothing = found.cells
    assert leaks.auroc.value > 0.95
    assert learns_nothing.auroc.value < 0.7
    assert leaks.gain is None
    change = learns_nothing.auroc.value - leaks.auroc.value
    assert change < -0.25


def test_the_command_draws_them(runs: list[Run], tmp_path: Path, cli: Cli) -> None:
    recorded = [word for run in runs for word in ("--recorded", run.path)]
    options = ["--scenario", "server-reconstruct", "--shadows", 0, "--owner", OWNER]
    code, out, _ = cli("tradeoff", *recorded, *options, "--out", tmp_path / "out")
    assert code == 0
    assert out.count("learns:") == 2
    assert (tmp_path / "out" / "plane.svg").exists()
    assert "-" in (tmp_path / "out" / "sweep.md").read_text()


def test_what_is_about_training_is_refused(runs: list[Run], cli: Cli) -> None:
    assert "about training" in refused(
        cli, "tradeoff", "--recorded", runs[0].path, "--trainers", "dp-fpl"
    )


def test_a_run_that_was_trained_here_is_refused(whole: Path) -> None:
    with pytest.raises(ConfigError, match="was trained here"):
        weigh_runs([load_run(whole)], PLAN)


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
    assert planned_run(cell, 3).short_hash == config.short_hash


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


def test_half_of_the_seeds_are_enough_where_nothing_is_undecided() -> None:
    plan = make_plan({"trainers": ["zero-shot"], "seeds": range(8)})
    assert plan.looks == (8,)
    assert plan.model_copy(update={"until_decided": True}).looks == (4, 8)
    found = small_sweep(
        trainers=["zero-shot"], seeds=range(6), until_decided=True, shadows=0
    )
    assert found.cells[0].seeds == (0, 1, 2)  # one cell has no rival
    assert found.front.alpha == 0.025


def test_early_stopping_is_a_row_of_its_own() -> None:
    plan = make_plan({"trainers": ["promptfl", "zero-shot"], "stop_after": 2})
    labels = [cell.label for cell in cells_of(plan)]
    assert labels == ["promptfl", "promptfl, stopped after 2 rounds", "zero-shot"]
    assert [cell.config(1).rounds for cell in cells_of(plan)][:2] == [10, 2]
