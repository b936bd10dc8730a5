"""Leakage against utility of federations that others trained."""

from pathlib import Path

import pytest

from privaudit import Run, load_run
from privaudit.core.errors import ConfigError
from privaudit.evaluation.tradeoff.plan import SweepPlan
from privaudit.evaluation.tradeoff.recorded_tradeoff import weigh_runs
from privaudit.recording.owner import use_owner
from tests.conftest import Cli
from tests.privaudit.recording.small_federation import Linear, record, toss

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
    code, _, err = cli("tradeoff", "--recorded", runs[0].path, "--trainers", "dp-fpl")
    assert code == 2
    assert "about training" in err


def test_a_run_that_was_trained_here_is_refused(whole: Path) -> None:
    with pytest.raises(ConfigError, match="was trained here"):
        weigh_runs([load_run(whole)], PLAN)
