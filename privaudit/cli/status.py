"""``privaudit status``: progress of sweeps and runs, and who holds them."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from privaudit.core.errors import PrivauditError, one_line
from privaudit.core.limits import most
from privaudit.core.storage import parse_json, read_json
from privaudit.execution.sweeps import SWEEP, SWEEPS, is_alive
from privaudit.runs.lease import LeaseFiles, LeaseOwner, lease_name
from privaudit.runs.names import is_name
from privaudit.runs.own_files import HEADER
from privaudit.runs.run_folder import FolderLeases
from privaudit.runs.store import RemoteFolder, RemoteLeases, url_of

Json = dict[str, Any]
_LEASE = TypeAdapter(LeaseOwner)
# What reading raises; OverflowError of numbers such as 1e400.
_DAMAGE = PrivauditError, ValueError, TypeError, AttributeError, OverflowError


def read_status(runs: Path) -> Json:
    """Return each sweep with its jobs, and each run, as JSON knows them.

    Read as they stand there: nothing is locked, and no signature is looked at. Of a
    store its runs, and the sweeps that were driven from this machine.

    Args:
        runs: The folder of runs, or a working copy of one in a store.
    """
    url = url_of(runs)
    trained = dict(_runs_of_store(url) if url else _runs_of_folder(runs))
    files = sorted((runs / SWEEPS).glob(f"*/{SWEEP}"))
    return {
        "sweeps": {file.parent.name: _sweep(file, trained) for file in files},
        "runs": trained,
    }


def _runs_of_folder(runs: Path) -> Iterator[tuple[str, Json]]:
    for header in sorted(runs.glob(f"*/{HEADER}")):
        run = header.parent
        yield run.name, _run(partial(read_json, header), FolderLeases(run), run)


def _runs_of_store(url: str) -> Iterator[tuple[str, Json]]:
    """Yield the runs of a store's folder by name; nothing is downloaded beside run.json."""
    for name in sorted(filter(is_name, RemoteFolder(url).names())):
        run = RemoteFolder(f"{url}/{name}")
        if content := run.start_of(HEADER, most("text")):
            path = Path(f"{name}/{HEADER}")
            read = partial(parse_json, content, path)
            yield name, _run(read, RemoteLeases(run))


def _run(read: Callable[[], Json], leases: LeaseFiles, run: Path | None = None) -> Json:
    """Return how far a run is, and who trains it."""
    try:
        header = read()
        done = int(header.get("progress", {}).get("rounds", 0))
        total = int(header.get("config", {}).get("rounds", 0))
    except _DAMAGE as error:
        return {"state": "damaged", "error": one_line(str(error))}
    owner = {} if done >= total else _owner(leases, run)
    state = "done" if done >= total else "running" if owner else "stopped"
    return {"state": state, "rounds": done, "of": total, **owner}


def _owner(leases: LeaseFiles, run: Path | None) -> Json:
    """Return who has a run's lease, if they gave a sign before it expires.

    A store does not say when a sign was given: there, who gave the lease back, or ended
    on this machine, has it no more.
    """
    number, content = leases.newest()
    try:
        owner = _LEASE.validate_json(content)
        found = run.glob(lease_name(number)) if run else []
        signs = [path.stat().st_mtime for path in found]
        silent = time.time() - max(signs) if run else 0.0
    except (ValidationError, ValueError, OSError):
        return {}
    if owner.ended or owner.is_gone or silent > owner.expiry:
        return {}
    age = {"silent": round(max(0.0, silent))} if run else {}
    return {"host": owner.host, "pid": owner.pid, **age}


def _sweep(file: Path, runs: Mapping[str, Json]) -> Json:
    """Return a sweep's jobs, each as it is now."""
    try:
        content = read_json(file)
        jobs = {n: _job(dict(j), runs) for n, j in content.get("jobs", {}).items()}
    except _DAMAGE as error:
        return {"kind": "damaged", "error": one_line(str(error)), "jobs": {}}
    return {"kind": content.get("kind"), "jobs": jobs}


def _job(job: Json, runs: Mapping[str, Json]) -> Json:
    """Hold what a driver wrote of a job against its run, which may know more."""
    run, state = runs.get(str(job.get("run")), {}), job.get("state")
    if state != "done" and run.get("state") == "running":
        return {**job, **run}
    if state == "running" and not is_alive(job.get("host"), job.get("driver")):
        return {**job, **run, "state": "trained" if _is_done(run) else "stopped"}
    return {**job, **{name: run[name] for name in ("rounds", "of") if name in run}}


def _is_done(run: Mapping[str, Any]) -> bool:
    return run.get("state") == "done"


def lines_of(status: Json) -> Iterator[str]:
    """Yield a status as lines: sweeps with what is not plainly done or waiting, runs."""
    swept = set()
    for name, sweep in status["sweeps"].items():
        jobs = sweep["jobs"]
        swept |= {job.get("run") for job in jobs.values()}
        yield f"{name}: {_counts(jobs) or sweep.get('error', 'no jobs')}"
        for what, job in jobs.items():
            if job.get("state") not in ("done", "waiting"):
                yield f"  {what}: {in_words(job)}"
    others = {n: run for n, run in status["runs"].items() if n not in swept}
    if others:
        what = "other runs" if swept else "runs"
        yield f"{len(others)} {what}: {_counts(others)}"
    for name, run in others.items():
        if not _is_done(run):
            yield f"  {name}: {in_words(run)}"


def _counts(jobs: Mapping[str, Json]) -> str:
    states = [str(job.get("state")) for job in jobs.values()]
    return ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))


def in_words(job: Json) -> str:
    """Say how a job or a run is: rounds, who trains, since when, and why it failed."""
    words = str(job.get("state"))
    words += f", round {job['rounds']} of {job['of']}" if "rounds" in job else ""
    if words.startswith("running") and job.get("host"):
        process = job.get("pid", job.get("driver"))
        words += f", process {process} of {job['host']}"
        words += " (this machine)" * (job["host"] == socket.gethostname())
    words += f", since {job['since']}" if "since" in job else ""
    return one_line(words + (f": {job['error']}" if "error" in job else ""))
