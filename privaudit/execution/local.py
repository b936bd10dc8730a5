"""Jobs on this machine: in this process, or in several of their own."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from privaudit.core.devices import chosen_device
from privaudit.core.errors import LostWorkerError, PrivauditError, without_exits
from privaudit.execution.computing import computing_here
from privaudit.execution.jobs import (
    Begun,
    Finished,
    Job,
    Result,
    perform_there,
)
from privaudit.execution.room import processes_that_fit
from privaudit.statistics.progress import Watcher

WORTH = 20.0
"""Seconds that processes must save: each takes four or five to import what it needs."""


@dataclass(frozen=True)
class Local:
    """Runs jobs in processes of this machine.

    Attributes:
        processes: How many at a time; with 1 jobs run in this process. With None the
            first runs here, and the rest in as many as fit, if that saves time.
    """

    processes: int | None = 1

    def run(
        self,
        jobs: Sequence[Job[Result]],
        *,
        watcher: Watcher | None = None,
        begun: Begun | None = None,
    ) -> Generator[Finished[Result]]:
        """Yield each job as it finishes, as :class:`Executor` says."""
        waiting, seconds = deque(jobs), 0.0
        while waiting and (count := self._count(len(waiting), seconds)) == 1:
            job, started = waiting.popleft(), time.monotonic()
            if begun:
                begun(job)
            yield _perform_here(job, watcher)
            seconds = time.monotonic() - started
        if waiting:
            yield from _in_processes(waiting, count, begun)

    def _count(self, left: int, seconds: float) -> int:
        """Return how many processes take what is left, of so many seconds each."""
        if self.processes is not None:
            return min(self.processes, left)
        count = min(left, _that_fit()) if seconds else 1
        return count if seconds * left * (1 - 1 / count) > WORTH else 1


HERE = Local()
"""In this process, one job after the other."""


def _that_fit() -> int:
    """Return how many processes this machine has cores and memory for.

    Each takes as many threads as this one, and perhaps as much memory as this one did.
    Nobody knows how much of a GPU's memory a job takes, so there it is one; and so it is
    where the system does not say how much memory there is.
    """
    if chosen_device().type != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = cores or os.cpu_count() or 1
    return max(1, min(cores // torch.get_num_threads(), processes_that_fit() or 1))


def _perform_here(job: Job[Result], watcher: Watcher | None) -> Finished[Result]:
    try:
        with without_exits():
            return Finished(job, job.perform(*job.arguments, watcher=watcher))
    except PrivauditError as error:
        return Finished(job, error=error)


def _in_processes(
    waiting: deque[Job[Result]], count: int, begun: Begun | None
) -> Generator[Finished[Result]]:
    """Yield each job as it finishes in one of several processes."""
    computing = computing_here(count)
    running: dict[Future[Result], tuple[Job[Result], ProcessPoolExecutor]] = {}
    with _processes() as start:
        idle = [start() for _ in range(count)]
        while waiting or running:
            while waiting and idle:
                job, process = waiting.popleft(), idle.pop()
                if begun:
                    begun(job)
                try:
                    future = process.submit(perform_there, computing, job)
                except BrokenProcessPool:  # it was killed while it had no job
                    process = start()
                    future = process.submit(perform_there, computing, job)
                running[future] = job, process
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, process = running.pop(future)
                finished = _process_finished(job, future)
                is_lost = isinstance(finished.error, LostWorkerError)
                idle.append(start() if is_lost else process)
                yield finished


def _process_finished(job: Job[Result], future: "Future[Result]") -> Finished[Result]:
    try:
        return Finished(job, future.result())
    except BrokenProcessPool:
        return Finished(
            job,
            error=LostWorkerError(
                f"The process of {job.name} was killed, perhaps for want of memory, or "
                "other people's code ended it. Finished rounds are kept: run the same "
                "command again, with fewer processes (--on local:1)."
            ),
        )
    except PrivauditError as error:
        return Finished(job, error=error)


@contextmanager
def _processes() -> Iterator[Any]:
    """Let processes be started, one by one; whatever ends the work, Ctrl-C too, ends them.

    They are spawned, not forked: a fork of a process whose threads have computed may
    wait for them forever. Each is a pool of its own, so that one that is killed takes no
    other's job with it. A run that is cut off loses the round it is in, no more.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pools: list[ProcessPoolExecutor] = []

    def start() -> ProcessPoolExecutor:
        pools.append(ProcessPoolExecutor(1, context, initializer=_prepare_worker))
        return pools[-1]

    try:
        yield start
    except BaseException:
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Let Ctrl-C end a worker at once and in silence: who handed out says what to do.

    A driver that is killed cannot end its workers, so they end when it has.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)
