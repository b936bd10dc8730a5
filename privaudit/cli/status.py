"""``privaudit status``: what sweeps and runs are doing now."""

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from privaudit.core.errors import PrivauditError, one_line
from privaudit.core.storage import read_json
from privaudit.execution.sweeps import SWEEP, SWEEPS, is_alive
from privaudit.federated.runs.folder.lease import LeaseOwner
from privaudit.federated.runs.folder.own_files import HEADER
from privaudit.federated.runs.folder.run_lock import FolderLeases

Json = dict[str, Any]
_LEASE = TypeAdapter(LeaseOwner)


def read_status(runs: Path) -> Json:
    """Return each sweep with its jobs, and each run, as JSON knows them.

    Read as they stand there: nothing is locked, and no signature is looked at.

    Args:
        runs: The folder of runs.
    """
    trained = {
        place.parent.name: _run(place) for place in sorted(runs.glob(f"*/{HEADER}"))
    }
    files = sorted((runs / SWEEPS).glob(f"*/{SWEEP}"))
    return {
        "sweeps": {file.parent.name: _sweep(file, trained) for file in files},
        "runs": trained,
    }


def _run(place: Path) -> Json:
    """Return how far a run is, and who trains it."""
    try:
        header = read_json(place)
        done = int(header.get("progress", {}).get("rounds", 0))
        total = int(header.get("config", {}).get("rounds", 0))
    except (PrivauditError, ValueError, TypeError, AttributeError) as error:
        return {"state": "damaged", "error": one_line(str(error))}
    owner = {} if done >= total else _owner(place.parent)
    state = "done" if done >= total else "running" if owner else "stopped"
    return {"state": state, "rounds": done, "of": total, **owner}


def _owner(run: Path) -> Json:
    """Return who has a run's lease, if they gave a sign before it expires."""
    leases = FolderLeases(run)
    number, content = leases.newest()
    try:
        owner = _LEASE.validate_json(content)
        silent = time.time() - max(
            path.stat().st_mtime for path in run.glob(f".lease-{number:04d}")
        )
    except (ValidationError, ValueError, OSError):
        return {}
    if owner.ended or owner.is_gone or silent > owner.expiry:
        return {}
    return {"host": owner.host, "pid": owner.pid, "silent": round(max(0.0, silent))}


def _sweep(file: Path, runs: Mapping[str, Json]) -> Json:
    """Return a sweep's jobs, each as it is now."""
    try:
        content = read_json(file)
        jobs = {n: _job(dict(j), runs) for n, j in content.get("jobs", {}).items()}
    except (PrivauditError, ValueError, TypeError, AttributeError) as error:
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
                yield f"  {what}: {_in_words(job)}"
    others = {n: run for n, run in status["runs"].items() if n not in swept}
    if others:
        yield (
            f"{len(others)} other runs: {_counts(others)}"
            if swept
            else (f"{len(others)} runs: {_counts(others)}")
        )
    for name, run in others.items():
        if not _is_done(run):
            yield f"  {name}: {_in_words(run)}"


def _counts(jobs: Mapping[str, Json]) -> str:
    states = [str(job.get("state")) for job in jobs.values()]
    return ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))


def _in_words(job: Json) -> str:
    """Say how a job or a run is: rounds, who trains, since when, and why it failed."""
    words = str(job.get("state"))
    words += f", round {job['rounds']} of {job['of']}" if "rounds" in job else ""
    if words.startswith("running") and job.get("host"):
        process = job.get("pid", job.get("driver"))
        words += f", process {process} of {job['host']}"
        words += " (this machine)" * (job["host"] == socket.gethostname())
    words += f", since {job['since']}" if "since" in job else ""
    return one_line(words + (f": {job['error']}" if "error" in job else ""))
