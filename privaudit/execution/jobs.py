"""Jobs: work that depends on its description alone, who does it, and how it computes."""

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from privaudit.core.context import set_within
from privaudit.core.devices import as_chosen, chosen, chosen_device, use_device
from privaudit.core.errors import (
    ConfigError,
    LostWorkerError,
    PrivauditError,
    shown,
    without_exits,
)
from privaudit.core.lazy_torch import torch
from privaudit.models.remote_code import remote_code_is_trusted, trust_remote_code
from privaudit.statistics.progress import Watcher

OWNER: ContextVar[str | None] = ContextVar("where the owner's module is", default=None)


def computing_here(parts: int = 1) -> str:
    """Return device, memory, checkpointing, trust in models' own code, threads and owner.

    A line of JSON, for :func:`computing_as` in so many processes, which share the memory.
    """
    limit, checkpointing = chosen(parts)
    device, trusted = str(chosen_device()), remote_code_is_trusted()
    threads = torch.get_num_threads()
    return json.dumps([device, limit, checkpointing, trusted, threads, OWNER.get()])


@contextmanager
def computing_as(computing: str) -> Iterator[None]:
    """Compute within as the process that :func:`computing_here` was called in."""
    device, limit, checkpointing, trusted, threads, owner = json.loads(computing)
    with (
        use_device(torch.device(device)),
        as_chosen(limit, checkpointing),
        trust_remote_code(trusted),
        use_threads(threads),
        set_within(OWNER, owner),
    ):
        yield


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute on so many threads, and afterwards on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Result = TypeVar("Result")


@dataclass(frozen=True)
class Job(Generic[Result]):
    """One of many pieces of work, none of which waits for another.

    Its result depends on nothing else than what stands here, files, and how the process
    computes that hands it out, so that it is the same wherever it runs.

    Attributes:
        name: In errors and on dashboards; no two jobs share it.
        perform: A function of a module, which other processes find by its name. Takes
            the arguments, and ``watcher``: None in other processes.
        arguments: Can be pickled; and so can the result.
        run: Name of the run that it trains; empty for none.
    """

    name: str
    perform: Callable[..., Result]
    arguments: tuple[Any, ...] = ()
    run: str = ""


@dataclass(frozen=True)
class Finished(Generic[Result]):
    """A job that is done, or that an error of ours has ended.

    Attributes:
        result: None where there is an error.
        error: What the job raised, or a :class:`privaudit.core.errors.LostWorkerError`.
    """

    job: Job[Result]
    result: Result | None = None
    error: PrivauditError | None = None

    @property
    def value(self) -> Result:
        """The result; an error of the job is raised."""
        if self.error is not None:
            raise self.error
        return cast(Result, self.result)


Begun = Callable[[Job[Any]], None]


@runtime_checkable
class Executor(Protocol):
    """Runs jobs somewhere. Results do not depend on where, nor on their order."""

    def run(
        self,
        jobs: Sequence[Job[Result]],
        *,
        watcher: Watcher | None = None,
        begun: Begun | None = None,
    ) -> Generator[Finished[Result]]:
        """Yield each job as it finishes; one that is closed early ends the others.

        The watcher is of what jobs do that run in this process; ``begun`` is called with
        a job as it begins, where that is known.
        """


def perform_there(computing: str, job: Job[Result]) -> Result:
    """Do a job in another process, which computes as the one that handed it out."""
    with computing_as(computing), without_exits():
        return job.perform(*job.arguments, watcher=None)


def refuse_copies(jobs: Sequence[Job[Any]]) -> None:
    """Refuse two jobs of one name: they are identified by it."""
    names = Counter(job.name for job in jobs)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ConfigError(
            f"{names[twice[0]]} jobs are called {shown(twice[0])}, so that their "
            "results could not be distinguished. Leave all but one out, or give each "
            "another name."
        )


def finish_all(finished: Iterator[Finished[Result]]) -> Iterator[Finished[Result]]:
    """Yield what is done; the first error of ours ends it, a lost process at the end."""
    lost: list[PrivauditError] = []
    for one in finished:
        if isinstance(one.error, LostWorkerError):
            lost.append(one.error)
            continue
        _ = one.value
        yield one
    if lost:
        raise lost[0]


def results_of(
    executor: Executor,
    jobs: Sequence[Job[Result]],
    *,
    watcher: Watcher | None = None,
    begun: Begun | None = None,
) -> list[Result]:
    """Run jobs, and return their results in the order of the jobs, or raise their error."""
    refuse_copies(jobs)
    found: dict[str, Result] = {}
    with closing(executor.run(jobs, watcher=watcher, begun=begun)) as finished:
        for one in finish_all(finished):
            found[one.job.name] = one.value
    return [found[job.name] for job in jobs]
