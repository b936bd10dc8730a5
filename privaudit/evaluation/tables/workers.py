"""Where a table's runs are trained: here, or in processes of their own."""

import multiprocessing
import signal
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privaudit.evaluation.computing import computing_as, computing_here
from privaudit.evaluation.tables.outcomes import TableOutcome, perform
from privaudit.evaluation.tables.schedule import PlannedRun

Done = tuple[PlannedRun, TableOutcome]


def perform_all(
    runs: Sequence[PlannedRun], folder: Path | None, jobs: int
) -> Generator[Done]:
    """Yield each run with its outcome, as it finishes.

    Args:
        runs: No two of one configuration.
        folder: Where runs are kept.
        jobs: How many processes; with 1, runs are trained in this one.
    """
    if jobs == 1:
        for planned in runs:
            yield planned, perform(planned, folder)
        return
    computing = computing_here(jobs)
    with _workers(min(jobs, max(1, len(runs)))) as pool:
        waiting = {
            pool.submit(perform_there, computing, planned, folder): planned
            for planned in runs
        }
        for future in as_completed(waiting):
            planned = waiting[future]
            yield planned, _outcome(planned, future)


def _outcome(planned: PlannedRun, future: "Future[TableOutcome]") -> TableOutcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return TableOutcome(
            planned.digest,
            error="A worker process was killed, perhaps for want of memory. Finished "
            "rounds are kept: run the same command again, with fewer --jobs.",
        )


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes; whatever ends the table, Ctrl-C too, ends them.

    They are spawned, not forked: a fork of a process whose threads have computed may
    wait for them forever. A run that is cut off loses the round it is in, no more.
    """
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_prepare_worker)
    try:
        yield pool
    except BaseException:
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Let Ctrl-C end a worker at once and in silence: the table says what to do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def perform_there(computing: str, *what: Any) -> TableOutcome:
    """Train a run, as :func:`perform` does, where and as another process would."""
    with computing_as(computing):
        return perform(*what)
