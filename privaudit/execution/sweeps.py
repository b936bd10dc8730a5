"""A sweep's jobs: shared with other processes, and written down as they change.

sweep.json holds a plan and where each of its jobs is. It is for people and `privaudit
status`: what is done is what the runs' folders hold, so a driver that was killed goes on
with the same command, and two drivers on one folder share the work.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from privaudit.core.errors import RunInUseError, TranscriptError, one_line
from privaudit.core.storage import (
    make_private_folder,
    read_json,
    storage_errors,
    write_json,
)
from privaudit.execution.jobs import (
    Begun,
    Executor,
    Finished,
    Job,
    Result,
    refuse_copies,
)
from privaudit.statistics.progress import Watcher

SWEEPS, SWEEP = "sweeps", "sweep.json"
PAUSE = 0.5  # seconds between two looks at a run that another process trains
_LOCK, _LOOK = ".lock", 0.01  # and seconds between two looks at it
_HELD = 10.0  # seconds in which any driver has written: a kill left what lies longer


class _JobState(BaseModel):
    """What each job has at least."""

    state: str


_JOBS = TypeAdapter(dict[str, _JobState])


@dataclass(frozen=True)
class SweepFile:
    """The sweep.json of one plan, below the folder of runs."""

    path: Path

    @classmethod
    def begin(
        cls, runs: Path, kind: str, plan: Mapping[str, Any], jobs: Sequence[Job[Any]]
    ) -> "SweepFile":
        """Write a plan with its jobs, or add jobs that it does not have yet.

        A sweep's name is made of its kind, "tradeoff" or "table", and of the plan, in
        JSON's types.
        """
        text = json.dumps(plan, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        file = cls(runs / SWEEPS / f"{kind}-{digest}" / SWEEP)
        for folder in (runs, runs / SWEEPS, file.path.parent):
            make_private_folder(folder)
        states = {job.name: _state("waiting", job) for job in jobs}
        with _alone(file.path.parent):
            for name, state in file.read().get("jobs", {}).items():
                if state["state"] in ("running", "done"):
                    states[name] = state
            write_json(file.path, {"kind": kind, "plan": plan, "jobs": states})
        return file

    def note(self, job: Job[Any], state: str, **more: str | int) -> None:
        """Write what has become of a job, beside what other drivers wrote."""
        with _alone(self.path.parent):
            content = self.read()
            content.setdefault("jobs", {})[job.name] = _state(state, job, **more)
            write_json(self.path, content)

    def read(self) -> dict[str, Any]:
        """Return plan and states; nothing where there are none, or it was altered."""
        if self.path.exists():
            with suppress(TranscriptError, ValidationError):
                content = read_json(self.path)
                _JOBS.validate_python(content.get("jobs", {}))
                return content
        return {}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other drivers from writing meanwhile, wherever they share the folder."""
    lock, seen, since = folder / _LOCK, 0, time.monotonic()
    while not _is_made(lock):
        with suppress(FileNotFoundError):
            if (changed := lock.stat().st_mtime_ns) != seen:
                seen, since = changed, time.monotonic()  # clocks of machines differ
        if time.monotonic() - since > _HELD:
            lock.unlink(missing_ok=True)
        time.sleep(_LOOK)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _is_made(lock: Path) -> bool:
    """Make a file that is not there; say whether it was so."""
    with storage_errors(lock):
        try:
            lock.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            return False
    return True


def _state(state: str, job: Job[Any], **more: str | int) -> dict[str, str | int]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"state": state, "since": since, "run": job.run, **more}


def run_jobs(
    executor: Executor,
    jobs: Sequence[Job[Result]],
    file: SweepFile,
    *,
    watcher: Watcher | None = None,
    begun: Begun | None = None,
    failure: Callable[[Result], str] | None = None,
) -> Generator[Finished[Result]]:
    """Yield a sweep's jobs as they finish, and write down where they are.

    A job whose run another process trains comes after all others, and then waits: for
    the run, or for the end of that process, whose work it goes on with.

    No two jobs are of one run. Watcher and ``begun`` are as for :class:`Executor`;
    ``failure`` says why a result is one, and nothing where it is none.
    """
    refuse_copies(jobs)

    def begin(job: Job[Any]) -> None:
        file.note(job, "running", host=socket.gethostname(), driver=os.getpid())
        if begun:
            begun(job)

    def noted(one: Finished[Result]) -> Finished[Result]:
        failed = failure(one.value) if failure and one.error is None else one.error
        state = {"error": one_line(str(failed))} if failed else {}
        file.note(one.job, "failed" if failed else "done", **state)
        return one

    in_use: dict[str, Job[Result]] = {}
    with closing(executor.run(jobs, watcher=watcher, begun=begin)) as finished:
        for one in finished:
            if isinstance(one.error, RunInUseError):
                in_use[one.job.name] = one.job
                file.note(one.job, "running", host="", driver=0)
            else:
                yield noted(one)
    patient = [
        replace(job, perform=_when_free, arguments=(job.perform, job.arguments))
        for job in in_use.values()
    ]
    with closing(executor.run(patient, watcher=watcher, begun=begun)) as finished:
        for one in finished:
            yield noted(replace(one, job=in_use[one.job.name]))


def _when_free(
    perform: Callable[..., Result],
    arguments: tuple[Any, ...],
    watcher: Watcher | None = None,
) -> Result:
    """Do a job that waits for its run."""
    while True:
        try:
            return perform(*arguments, watcher=watcher)
        except RunInUseError:
            time.sleep(PAUSE)


def is_alive(host: object, process: object) -> bool:
    """Say whether a driver may be: nobody knows of other machines."""
    if host != socket.gethostname() or not isinstance(process, int) or process < 1:
        return bool(host)
    return Path(f"/proc/{process}").exists() or not Path("/proc/self").exists()
