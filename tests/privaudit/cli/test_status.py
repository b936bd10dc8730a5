import json
import os
import socket
from pathlib import Path

from privaudit.core.errors import LostWorkerError
from privaudit.execution.jobs import Finished, Job
from privaudit.execution.sweeps import SweepFile
from privaudit.runs.run import runs_folder
from privaudit.runs.run_folder import lock_run
from tests.conftest import Cli


def test_sweeps_and_runs_are_shown_as_they_are_now(
    whole: Path, cut: Path, cli: Cli
) -> None:
    jobs = [
        Job("first", print, run=whole.name),
        Job("second", print, run=cut.name),
        Job("third", print, run="not there"),
        Job("fourth", print, run="nor there"),
    ]
    file = SweepFile.begin(runs_folder(), "tradeoff", {"seeds": [1]}, jobs)
    file.note(jobs[0], "done")
    host = socket.gethostname()
    file.note(jobs[1], "running", host=host, driver=os.getpid())
    lost: Finished[None] = Finished(jobs[2], error=LostWorkerError("killed, perhaps"))
    file.note(jobs[2], "failed", error=str(lost.error))
    code, out, err = cli("status")
    assert (code, err) == (0, "")
    head, second, third = out.splitlines()
    assert head.endswith(": 1 done, 1 running, 1 failed, 1 waiting")
    assert "  second: running, round 2 of 3, process" in second
    assert third.startswith("  third: failed, since ")
    assert third.endswith(": killed, perhaps")

    with lock_run(cut):  # whoever writes in a run holds its lease
        status = json.loads(cli("status", "--json")[1])
    assert status["runs"][whole.name] == {"state": "done", "rounds": 2, "of": 2}
    held = status["runs"][cut.name]
    assert (held["state"], held["pid"]) == ("running", os.getpid())
    (sweep,) = status["sweeps"].values()
    assert sweep["kind"] == "tradeoff"
    assert sweep["jobs"]["second"]["pid"] == os.getpid()

    file.note(jobs[1], "running", host=host, driver=2**22 + 1)
    assert "  second: stopped, round 2 of 3" in cli("status")[1]
    (cut / "run.json").write_text("{")
    assert "  second: stopped, since" in cli("status", str(runs_folder()))[1]


def test_runs_without_a_sweep_and_damage(whole: Path, cut: Path, cli: Cli) -> None:
    lines = cli("status")[1].splitlines()
    assert lines == ["2 runs: 1 stopped, 1 done", "  cut: stopped, round 2 of 3"]
    for progress in ("1", '{"rounds": 1e400}'):
        (cut / "run.json").write_text(f'{{"progress": {progress}}}')
        assert "  cut: damaged" in cli("status")[1]
    place = runs_folder() / "sweeps" / "tradeoff-1"
    place.mkdir(parents=True)
    (place / "sweep.json").write_text('{"jobs": [1]}')
    assert "tradeoff-1: " in cli("status")[1]


def test_an_empty_folder_says_so(tmp_path: Path, cli: Cli) -> None:
    assert cli("status", str(tmp_path)) == (0, f"There is no run in {tmp_path}.\n", "")
