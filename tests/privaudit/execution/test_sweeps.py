import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from privaudit.core.errors import ConfigError, LostWorkerError, UnknownNameError
from privaudit.execution import sweeps
from privaudit.execution.executors import HERE
from privaudit.execution.jobs import Executor, Finished, Job, finish_all, results_of
from privaudit.execution.sweeps import SweepFile, run_jobs
from tests.privaudit.execution.some_jobs import FAILS, SQUARES, in_use_at_first

KIND = "tradeoff"
PLAN = {"seeds": [1, 2]}


def states(file: SweepFile) -> dict[str, str]:
    jobs = json.loads(file.path.read_text())["jobs"]
    return {name: job["state"] for name, job in jobs.items()}


def test_states_are_written_as_they_change_and_a_failure_says_why(
    tmp_path: Path,
) -> None:
    one, two = SQUARES[:2]
    file = SweepFile.begin(tmp_path, KIND, PLAN, [one, FAILS, two])
    seen: list[dict[str, str]] = []
    for _ in run_jobs(HERE, [one, FAILS, two], file):
        seen.append(states(file))
    assert [list(line.values()) for line in seen] == [
        ["done", "waiting", "waiting"],
        ["done", "failed", "waiting"],
        ["done", "failed", "done"],
    ]
    content = json.loads(file.path.read_text())
    assert (content["kind"], content["plan"]) == (KIND, PLAN)
    assert "Did you mean 'promptfl'?" in content["jobs"][FAILS.name]["error"]
    again = SweepFile.begin(tmp_path, KIND, PLAN, [one, FAILS, two])
    assert again == file
    assert list(states(file).values()) == ["done", "waiting", "done"]
    assert SweepFile.begin(tmp_path, KIND, {"seeds": [3]}, [one]) != file


def test_a_result_can_be_a_failure(tmp_path: Path) -> None:
    file = SweepFile.begin(tmp_path, KIND, PLAN, SQUARES)
    list(run_jobs(HERE, SQUARES, file, failure=lambda n: "a four" if n == 4 else ""))
    assert [*states(file).values()].count("failed") == 1


def test_a_run_in_use_comes_after_all_others_and_is_waited_for(tmp_path: Path) -> None:
    file = SweepFile.begin(tmp_path, KIND, PLAN, SQUARES)
    shared: Job[Any] = Job("shared", in_use_at_first, (tmp_path / "mark",))
    done = list(run_jobs(HERE, [shared, *SQUARES], file))
    assert [one.job for one in done] == [*SQUARES, shared]
    assert done[-1].value == "trained"
    assert set(states(file).values()) == {"done"}


@pytest.mark.parametrize(
    "altered",
    ["{", "[]", '{"jobs": []}', '{"jobs": {"square of 0": "done"}}', '{"jobs": {"a": {}}}'],
)  # fmt: skip
def test_an_altered_file_is_begun_anew(altered: str, tmp_path: Path) -> None:
    file = SweepFile.begin(tmp_path, KIND, PLAN, SQUARES)
    file.note(SQUARES[0], "done")
    file.path.write_text(altered)
    assert SweepFile.begin(tmp_path, KIND, PLAN, SQUARES) == file
    assert set(states(file).values()) == {"waiting"}
    file.path.write_text(altered)
    file.note(SQUARES[1], "done")
    assert states(file)[SQUARES[1].name] == "done"


def test_two_drivers_lose_nothing_of_each_other(tmp_path: Path) -> None:
    jobs: list[Job[Any]] = [Job(f"{n}", print) for n in range(20)]
    file = SweepFile.begin(tmp_path, KIND, PLAN, jobs)

    def note_all(mine: Sequence[Job[Any]]) -> None:
        for job in mine:
            file.note(job, "done")

    with ThreadPoolExecutor(4) as drivers:
        list(drivers.map(note_all, [jobs[n::4] for n in range(4)]))
    assert set(states(file).values()) == {"done"}
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_a_lock_that_a_kill_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SweepFile.begin(tmp_path, KIND, PLAN, SQUARES)
    (file.path.parent / ".lock").touch()
    monkeypatch.setattr(sweeps, "_HELD", 0.1)
    file.note(SQUARES[0], "done")
    assert states(file)[SQUARES[0].name] == "done"


def test_two_jobs_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = [*SQUARES, SQUARES[2]]
    file = SweepFile.begin(tmp_path, KIND, PLAN, twice)
    with pytest.raises(ConfigError, match="2 jobs are called 'square of 2'"):
        list(run_jobs(HERE, twice, file))
    with pytest.raises(ConfigError, match="2 jobs are called 'square of 2'"):
        results_of(HERE, twice)


def test_a_lost_process_ends_nothing_before_the_end_and_other_errors_do() -> None:
    lost: Finished[int] = Finished(SQUARES[0], error=LostWorkerError("killed"))
    found = finish_all(iter([lost, Finished(SQUARES[1], 1)]))
    assert next(found).value == 1
    with pytest.raises(LostWorkerError, match="killed"):
        next(found)
    finished: Any = HERE.run([FAILS, *SQUARES])
    with pytest.raises(UnknownNameError):
        next(finish_all(finished))
    assert isinstance(HERE, Executor)
    assert not isinstance(object(), Executor)
