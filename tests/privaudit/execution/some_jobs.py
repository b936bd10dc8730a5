"""Jobs for tests, in a module that other processes can import."""

import os
import pickle
import signal
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from privaudit.core.devices import chosen_device, is_checkpointing, memory_limit
from privaudit.core.errors import RunInUseError, UnknownNameError
from privaudit.core.portable_bits import bits_here
from privaudit.execution.jobs import Finished, Job
from privaudit.models.remote_code import remote_code_is_trusted


def square(number: int, watcher: object = None) -> int:
    return number * number


def fails(watcher: object = None) -> None:
    raise UnknownNameError("trainer", "promtfl", ["promptfl"])


def is_killed(watcher: object = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ends(watcher: object = None) -> None:
    sys.exit()


def leaves(watcher: object = None) -> None:
    os._exit(0)


def computes(watcher: object = None) -> tuple[Any, ...]:
    """Return how this process computes."""
    trusts, threads = remote_code_is_trusted(), torch.get_num_threads()
    of_device = str(chosen_device()), memory_limit(), is_checkpointing()
    return *of_device, trusts, threads, bits_here()


def is_watched(watcher: object = None) -> bool:
    """Whether this is the process that handed the job out."""
    return watcher is not None


IMPORTED_BY = os.getpid()


def threads_forked_of(watcher: object = None) -> int | None:
    """How many threads the parent has, where this module came with a fork of it."""
    tasks = Path(f"/proc/{os.getppid()}/task")
    return len([*tasks.iterdir()]) if os.getppid() == IMPORTED_BY else None


def in_use_at_first(mark: Path, watcher: object = None) -> str:
    """Find the run in use, once."""
    if not mark.exists():
        mark.touch()
        raise RunInUseError("Another process trains it.")
    return "trained"


SQUARES: list[Job[Any]] = [Job(f"square of {n}", square, (n,)) for n in range(6)]
FAILS: Job[Any] = Job("what fails", fails)
FORKED: Job[Any] = Job("what is forked", threads_forked_of)
KILLED: Job[Any] = Job("what is killed", is_killed)
ENDS: Job[Any] = Job("what ends", ends)
LEAVES: Job[Any] = Job("what leaves", leaves)
WATCHED: list[Job[Any]] = [Job(f"watched {n}", is_watched) for n in range(4)]
COMPUTES: Job[Any] = Job("how it computes", computes)


class LikeOthers:
    """Runs jobs backwards, in this process, and hands all over as others get it."""

    def run(
        self, jobs: Sequence[Job[Any]], *, watcher: object = None, begun: Any = None
    ) -> Generator[Finished[Any]]:
        for job in reversed(jobs):
            if begun:
                begun(job)
            there = pickle.loads(pickle.dumps(job))
            result = there.perform(*there.arguments, watcher=None)
            yield Finished(job, pickle.loads(pickle.dumps(result)))
