"""What more processes save, and what handing a job out costs.

Run by ``make bench``; the figures of Ray where it is installed, as in ``.venv-ray``.
"""

import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from privaudit.evaluation.tradeoff.sweep import sweep
from privaudit.execution.executors import HERE, Local, OnRay
from privaudit.execution.jobs import Executor, Job, results_of
from privaudit_tools.benchmarks.measuring import machine
from tests.privaudit.execution.some_jobs import square

SWEPT: dict[str, Any] = {  # 12 runs of about ten seconds each
    "trainers": ["promptfl"],
    "seeds": [1, 2, 3, 4],
    "vary": {"rounds": [38, 40, 42]},
    "shadows": 0,
    "fields": {"clients": 4},
}
JOBS = 200


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds by the clock, and of processors, ended processes' among them."""
    wall, spent = time.monotonic(), _processor()
    work()
    return time.monotonic() - wall, _processor() - spent


def _processor() -> float:
    both = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    used = [resource.getrusage(who) for who in both]
    return sum(one.ru_utime + one.ru_stime for one in used)


def test_twelve_runs_in_one_process_and_in_two(tmp_path: Path) -> None:
    sweep(**SWEPT | {"vary": {"rounds": [1]}}, folder=tmp_path / "pictures encoded")
    print(f"\n{machine()}\n\n| processes | seconds | of processors |\n|---|---|---|")
    walls, found = [], []
    for processes in (1, 2):
        folder = tmp_path / str(processes)

        def work(processes: int = processes, folder: Path = folder) -> None:
            found.append(sweep(**SWEPT, folder=folder, executor=Local(processes)))

        wall, spent = seconds_of(work)
        walls.append(wall)
        print(f"| {processes} | {wall:.1f} | {spent:.1f} |")
    print(f"\nspeed-up {walls[0] / walls[1]:.2f}")
    assert found[0] == found[1]


@pytest.mark.skipif(not find_spec("ray"), reason="make test-ray installs it")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_twelve_runs_on_one_core_of_ray_and_on_two(tmp_path: Path) -> None:
    """Behind a first sweep, so that Ray's processes have imported what they need."""
    ray = import_module("ray")
    print(f"\n{machine()}\n\n| cores | seconds |\n|---|---|")
    walls, found = [], []
    for cores in (1, 2):
        ray.init(num_cpus=cores, log_to_driver=False, logging_level="ERROR")
        first = SWEPT | {"vary": {"rounds": [1]}, "seeds": [1, 2]}
        sweep(**first, folder=tmp_path / f"first {cores}", executor=OnRay())
        folder = tmp_path / str(cores)

        def work(folder: Path = folder) -> None:
            found.append(sweep(**SWEPT, folder=folder, executor=OnRay()))

        wall, _ = seconds_of(work)
        walls.append(wall)
        print(f"| {cores} | {wall:.1f} |")
        ray.shutdown()
    print(f"\nspeed-up {walls[0] / walls[1]:.2f}")
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_what_handing_out_a_job_costs() -> None:
    """Each time but the first, when Ray's own processes and ours are there."""
    jobs = [Job(f"job {n}", square, (n,)) for n in range(JOBS)]
    print(f"\n{machine()}\n\n| where | first two jobs, s | ms for each of {JOBS} |")
    print("|---|---|---|")
    for name, executor in _executors():
        first, _ = seconds_of(partial(results_of, executor, jobs[:2]))
        every, _ = seconds_of(partial(results_of, executor, jobs))
        print(f"| {name} | {first:.2f} | {1e3 * every / JOBS:.1f} |")


def _executors() -> Iterator[tuple[str, Executor]]:
    yield "this process", HERE
    yield "2 processes, started anew", Local(2)
    if find_spec("ray"):
        ray = import_module("ray")
        ray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR")
        yield "Ray", OnRay()
        ray.shutdown()
