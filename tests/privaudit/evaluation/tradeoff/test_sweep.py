import json
from pathlib import Path
from typing import Any

import pytest

from privaudit import load_run
from privaudit.cli.progress import CellDone, Event
from privaudit.core.errors import ConfigError
from privaudit.evaluation.tradeoff.plan import cells_of, make_plan
from privaudit.evaluation.tradeoff.sweep import planned_run, sweep
from privaudit.federated.runs.folder.run_names import runs_folder
from privaudit.report.galleries.sweep import write_sweep

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
                "attack": "label-only",
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
