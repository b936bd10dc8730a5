"""Ray, really started: two nodes of this machine, which are killed and hand over."""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.devices import use_checkpointing
from privaudit.core.errors import ConfigError, LostWorkerError, UnknownNameError
from privaudit.core.portable_bits import settings
from privaudit.evaluation.tradeoff.sweep import sweep
from privaudit.execution.executors import HERE, OnRay
from privaudit.execution.jobs import use_threads
from privaudit.statistics.progress import CellDone, Event
from tests.places import ROOT
from tests.privaudit.execution.some_jobs import COMPUTES, FAILS, KILLED, SQUARES

ray = pytest.importorskip("ray", reason="make test-ray installs it")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

PLAN = """
trainers = ["promptfl"]
seeds = [1, 2, 3, 4]
shadows = 0
settings = {epochs = 1}
fields = {clients = 2, test_share = 0.45}
vary = {rounds = [1, 2, 3]}
"""
SWEPT: dict[str, Any] = tomllib.loads(PLAN)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes of one core each, to which this process is connected."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        for name in settings():  # nodes that somebody started in native bits
            patch.delenv(name, raising=False)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """What the sweep finds in one process, and the bytes that count."""
    folder = tmp_path_factory.mktemp("here")
    return sweep(**SWEPT, folder=folder), what_counts(folder)


def what_counts(folder: Path) -> dict[str, Any]:
    """Return each run's configuration, the head of its transcript, and its audit."""
    found = {}
    for place in sorted(folder.glob("*/run.json")):
        header = json.loads(place.read_text())
        (audit,) = place.parent.glob("audits/*/audit.json")
        progress = header["progress"]
        found[place.parent.name] = (
            header["config"],
            progress["head"],
            progress["checkpoint_hash"],
            audit.read_text(),
        )
    return found


def test_jobs_on_ray_are_what_they_are_here(cluster: Any) -> None:
    with use_checkpointing(), use_threads(1):
        jobs = [FAILS, COMPUTES, *SQUARES]
        there = {one.job.name: one for one in OnRay().run(jobs)}
        here = {one.job.name: one for one in HERE.run(jobs)}
    assert there.keys() == here.keys()
    for name, one in here.items():
        assert there[name].result == one.result
    with pytest.raises(UnknownNameError, match="Did you mean 'promptfl'"):
        _ = there[FAILS.name].value
    (lost,) = OnRay().run([KILLED])
    assert isinstance(lost.error, LostWorkerError)
    with use_threads(3), pytest.raises(ConfigError, match="no node has more than 1"):
        list(OnRay().run(SQUARES))
    assert ray.is_initialized()


def test_a_node_that_is_killed_changes_nothing(
    cluster: Any, here: Any, tmp_path: Path
) -> None:
    """It is killed while it trains: Ray calls a process as its task is named."""
    node = cluster.add_node(num_cpus=1)
    killed: list[str] = []

    def kill(event: Event) -> None:
        if isinstance(event, CellDone) and not killed:
            killed.extend(titles(node, "ray::promptfl, rounds"))
            if killed:
                cluster.remove_node(node, allow_graceful=False)

    found = sweep(**SWEPT, folder=tmp_path, executor=OnRay(), watcher=kill)
    assert killed
    assert len(found.points) == 12
    assert found == here[0]
    assert what_counts(tmp_path) == here[1]


def titles(node: Any, begin: str) -> Iterator[str]:
    """Yield the titles of a node's processes that begin so."""
    raylet = node.all_processes["raylet"][0].process.pid
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            title = (place / "cmdline").read_text().strip("\0 ")
        except OSError:  # it has ended
            continue
        if int(parent) == raylet and title.startswith(begin):
            yield title


def test_two_drivers_share_a_folder_and_one_of_them_is_killed(
    cluster: Any, here: Any, tmp_path: Path
) -> None:
    """Then the same command goes on, and finds what is found in one process."""
    (tmp_path / "plan.toml").write_text(PLAN)
    runs = tmp_path / "runs"
    words = ["tradeoff", "--plan", str(tmp_path / "plan.toml"), "--runs", str(runs)]
    command = [sys.executable, "-m", "privaudit", *words, "--on", "ray", "--quiet"]
    environment = os.environ | {"RAY_ADDRESS": cluster.address, "PYTHONPATH": str(ROOT)}
    first, second = (
        subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    )
    while len(list(runs.glob("*/audits/*/audit.json"))) < 3:
        assert first.poll() is None, first.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    out, _ = second.communicate(timeout=300)
    assert second.returncode == 0, out
    assert what_counts(runs) == here[1]
    (file,) = runs.glob("sweeps/*/sweep.json")
    jobs = json.loads(file.read_text())["jobs"]
    assert {job["state"] for job in jobs.values()} == {"done"}
    assert sweep(**SWEPT, folder=runs) == here[0]
