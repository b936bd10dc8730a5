import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextvars import copy_context
from itertools import count
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch

from privaudit.core.devices import use_checkpointing, use_device, use_memory
from privaudit.core.errors import (
    ConfigError,
    LostWorkerError,
    PluginError,
    UnknownNameError,
)
from privaudit.core.portable_bits import bits_here
from privaudit.execution import executors
from privaudit.execution.executors import HERE, Local, OnRay, find_executor
from privaudit.execution.jobs import Finished, computing_as, computing_here, use_threads
from privaudit.models.remote_code import trust_remote_code
from tests.places import ROOT
from tests.privaudit.execution.some_jobs import (
    COMPUTES,
    ENDS,
    FAILS,
    KILLED,
    LEAVES,
    SQUARES,
    WATCHED,
)

PLAN = """
title = "t"
seeds = [1, 2, 3, 4]
[fields]
clients = 3
rounds = 400
[[rows]]
label = "a"
trainer = "promptfl"
"""


def by_name(finished: Any) -> dict[str, Finished[Any]]:
    return {one.job.name: one for one in finished}


def test_processes_give_what_this_one_gives_and_say_what_became_of_each_job() -> None:
    begun: list[str] = []
    with (
        use_threads(2),
        use_device(torch.device("cuda:3")),
        use_memory("9MB"),
        use_checkpointing(),
        trust_remote_code(),
    ):
        jobs = [FAILS, KILLED, ENDS, LEAVES, COMPUTES, *SQUARES]
        there = by_name(Local(2).run(jobs, begun=lambda job: begun.append(job.name)))
    here = by_name(HERE.run([FAILS, ENDS, *SQUARES]))
    assert len(there) == len(begun) == len(jobs)
    for job in SQUARES:
        assert there[job.name].value == here[job.name].value
    for found in (there, here):
        with pytest.raises(UnknownNameError, match="Did you mean 'promptfl'"):
            _ = found[FAILS.name].value
        with pytest.raises(PluginError, match=r"some_jobs.py ended the process"):
            _ = found[ENDS.name].value
    for job in (KILLED, LEAVES):
        with pytest.raises(
            LostWorkerError, match=f"{job.name} was killed, perhaps for"
        ):
            _ = there[job.name].value
    # Each has its part of the memory, and all else as here.
    assert there[COMPUTES.name].value == (
        "cuda:3",
        4_500_000,
        True,
        True,
        2,
        bits_here(),
    )


def test_processes_are_started_where_they_save_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand: 5 more of 10 s in 2 processes save 25 s, of 1 s next to nothing."""
    started: list[tuple[int, int]] = []

    def start(waiting: Any, processes: int, begun: Any) -> Any:
        started.append((len(waiting), processes))
        return iter(())

    monkeypatch.setattr(executors, "_in_processes", start)
    monkeypatch.setattr(executors, "_that_fit", lambda: 2)
    for seconds in (1, 10):
        clock = count(step=seconds)
        monkeypatch.setattr(time, "monotonic", lambda clock=clock: float(next(clock)))
        done = list(Local(None).run(SQUARES))
        assert len(done) == (6 if seconds == 1 else 1)
    assert started == [(5, 2)]
    monkeypatch.undo()
    with use_device(torch.device("cuda:3")):
        assert executors._that_fit() == 1
    with use_threads(10_000):
        assert executors._that_fit() == 1


def test_processes_that_are_warm_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In jobs after jobs, after a failure too; and they end when the command does.

    One that is killed while it waits for a job is replaced.
    """
    monkeypatch.setattr(executors, "_that_fit", lambda: 2)
    with executors.warm_processes():
        before = [by_name(Local(2).run(jobs)) for jobs in (SQUARES, [FAILS, *SQUARES])]
        watched = by_name(Local(None).run(WATCHED, watcher=print))
        first, second = multiprocessing.active_children()
        first.kill()
        pool = executors._WARM.get()
        ends = time.monotonic() + 60
        while not any(process._broken for process in pool.idle):  # type: ignore
            assert time.monotonic() < ends, "the pool does not see that it was killed"
            time.sleep(0.01)
        before.append(by_name(Local(2).run(SQUARES)))
        workers = multiprocessing.active_children()
    assert not any(done.value for done in watched.values())  # short, but free
    assert len(workers) == 2
    assert second in workers
    assert [done[SQUARES[2].name].value for done in before] == [4, 4, 4]
    assert not set(workers) & set(multiprocessing.active_children())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_ctrl_c_ends_every_process_and_says_what_to_do(tmp_path: Path) -> None:
    """The signal goes to the command alone; in a terminal, to its processes too."""
    (tmp_path / "plan.toml").write_text(PLAN)
    words = ["table", str(tmp_path / "plan.toml"), "--on", "local:2", "--runs"]
    # A shell's background jobs ignore Ctrl-C, and hand that on.
    script = f"""import signal, sys; sys.argv = ['', *{words}, {str(tmp_path)!r}]
signal.signal(signal.SIGINT, signal.default_int_handler)
from privaudit.cli.main import run; run()"""
    table = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    while not list(tmp_path.glob("*/kept/after-0001.safetensors")):
        assert table.poll() is None, table.communicate()
        time.sleep(0.05)
    os.kill(table.pid, signal.SIGINT)
    out, err = table.communicate(timeout=60)  # until every process has let go of stderr
    assert table.returncode == 130
    assert not out
    assert "interrupted. Finished rounds are kept: run the same" in err
    assert "Traceback" not in err


DRIVER = """
import os, signal, sys, time
from privaudit.execution.executors import Local, fork_workers, warm_processes

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
if {is_forked}:
    fork_workers(["tests.privaudit.execution.some_jobs"])
    try:
        os.killpg(0, signal.SIGINT)  # a terminal's Ctrl-C, while the server imports
        time.sleep(9)
    except KeyboardInterrupt:
        pass
from tests.privaudit.execution.some_jobs import FORKED, KILLED, SQUARES

with warm_processes():
    done = {{one.job.name: one for one in Local(2).run([FORKED, KILLED, *SQUARES])}}
    print([done[job.name].value for job in [FORKED, *SQUARES]], flush=True)
    print(type(done[KILLED.name].error).__name__, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("is_forked", [False, sys.platform == "linux"])
def test_workers_are_forked_of_one_thread_and_end_when_their_driver_was_killed(
    is_forked: bool,
) -> None:
    """Neither Ctrl-C as their server imports nor a worker that is killed ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(is_forked=is_forked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    ) as driver:
        assert driver.stdout is not None
        forked_of = 1 if is_forked else None
        assert driver.stdout.readline() == f"[{forked_of}, 0, 1, 4, 9, 16, 25]\n"
        assert driver.stdout.readline() == "LostWorkerError\n"
        driver.kill()
        driver.stdout.read()  # until all processes have let go of it, too
        assert driver.wait() == -signal.SIGKILL


@pytest.mark.parametrize("spawned_for", ["", "torch", "darwin", "one core"])
def test_workers_are_spawned_where_a_fork_is_unsafe_or_wins_nothing(
    spawned_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: served.append(True))
    if spawned_for != "torch":  # which may have threads
        monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(
        sys, "platform", "darwin" if spawned_for == "darwin" else "linux"
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 1 if spawned_for == "one core" else 2)
    copy_context().run(executors.fork_workers, ["json"])
    assert served == [True] * (not spawned_for)


def test_places_by_name() -> None:
    assert find_executor() == find_executor("local") == Local(None)
    assert find_executor("local:12") == Local(12)
    assert find_executor("ray") == OnRay(None, 0.25)
    assert find_executor("ray,gpus=0.5") == OnRay(None, 0.5)
    assert find_executor("ray://head:10001") == OnRay("ray://head:10001")
    assert find_executor("ray://[::1]:1,gpus=1") == OnRay("ray://[::1]:1", 1.0)
    with pytest.raises(ConfigError, match="at least 1, and is 0"):
        Local(processes=0)  # no job would ever be begun


@pytest.mark.parametrize(
    "name",
    ["", "loca", "local:", "local:0", "local:-1", "local:12345", "local,gpus=1",
     "ray:4", "ray://", "ray://a b", "ray,gpus=0", "ray,gpus=2", "ray,gpus=1.1.1"],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="names no place to run jobs"):
        find_executor(name)


def test_without_ray_it_is_said_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'ray\[client\]<"):
        list(OnRay().run(SQUARES))


def test_the_limits_of_containers_count_of_either_version(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("4:cpu,memory:/docker/a\n1:cpu:/b\n0::/slice/job:1\n")
    limits = {
        "memory/memory.limit_in_bytes": "9223372036854771712",  # none, in version 1
        "memory/docker/a/memory.limit_in_bytes": "3000",
        "slice/memory.max": "4000",
        "slice/job:1/memory.max": "max",
        "b/memory.max": "1",  # of another process
    }
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{limit}\n")
    assert list(executors.memory_limits(groups, tmp_path)) == [3000, 2**63 - 4096, 4000]
    assert not list(executors.memory_limits(tmp_path / "none", tmp_path))


def test_the_smaller_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "memory_limits", lambda: [])
    assert (executors.processes_that_fit() or 0) > 1
    monkeypatch.setattr(executors, "memory_limits", lambda: [2**62, 1])
    with use_threads(1):
        assert executors.processes_that_fit() == -1
        assert executors._that_fit() == 1
        monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
        assert executors.processes_that_fit() is None
        assert executors._that_fit() == 1


def test_who_computes_as_another_process_does_so_within() -> None:
    here = computing_here()
    with trust_remote_code(), computing_as(here):
        assert computing_here() == here
    with trust_remote_code(), use_memory("20GiB"):
        handed = computing_here(parts=2)
    with computing_as(handed):
        assert computing_here() == handed
    assert computing_here() == here
