"""Shadow models in jobs: what an attack finds does not depend on who trained them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from privaudit import Auditor, Run, load_run, train
from privaudit.auditing.shadow_models.jobs import shadow_jobs
from privaudit.execution.jobs import results_of
from privaudit.execution.local import HERE
from privaudit.statistics.progress import Event, Phase

ASKED: dict[str, Any] = {
    "clients": "all", "shadows": 5, "budget": None, "seed": 0, "attacks": [],
}  # fmt: skip
SERVER = "server-reconstruct"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    small: dict[str, Any] = {"rounds": 1, "epochs": 1, "test_share": 0.45}
    return train("promptfl", folder=folder, clients=10, seed=3, **small)


def test_jobs_leave_nothing_to_train_and_the_same_numbers(
    many: Run, tmp_path: Path
) -> None:
    shutil.copytree(many.path, tmp_path / many.name)
    alone = Auditor(load_run(tmp_path / many.name)).attack(SERVER, **ASKED)
    jobs = shadow_jobs(many, SERVER, ASKED)
    assert [len(job.arguments[3]) for job in jobs] == [2, 2, 2, 2, 2]
    results_of(HERE, jobs)
    events: list[Event] = []
    found = Auditor(many).attack(SERVER, watcher=events.append, **ASKED)
    assert not [e for e in events if isinstance(e, Phase) and e.phase == "shadows"]
    assert found.to_dict() == alone.to_dict()


@pytest.mark.parametrize(
    ("scenario", "asked"),
    [
        (SERVER, {"clients": 8}),  # one job
        (SERVER, {"shadows": 0}),
        ("server-aggregate", {}),  # whole federations: all targets are together
        ("prompt-release", {}),
        ("update-watch", {}),  # trains none
    ],
)
def test_where_nothing_is_won_there_are_none(
    many: Run, scenario: str, asked: dict[str, Any]
) -> None:
    assert shadow_jobs(many, scenario, ASKED | asked) == []
