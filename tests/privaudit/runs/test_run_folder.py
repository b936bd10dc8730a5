"""Folders that hold what no run wrote: nothing of it is lost."""

import errno
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from privaudit import load_run, train
from privaudit.core.errors import (
    ConfigError,
    PrivauditError,
    RunInUseError,
    StorageError,
)
from privaudit.core.storage import cache_folder, file_hash
from privaudit.runs import lease as leases
from privaudit.runs import training as trainings
from privaudit.runs.lease import Lease, RoundFiles, take_lease
from privaudit.runs.own_files import BEGUN
from privaudit.runs.run import Run, runs_folder
from privaudit.runs.run_folder import FolderLeases, clear_run, foreign_files, lock_run
from privaudit.runs.store import RemoteFolder
from privaudit.runs.training import TrainingState
from privaudit.statistics.progress import Event, Phase, watching
from tests.conftest import Cli

QUICK: dict[str, Any] = {"seed": 0, "rounds": 1, "epochs": 1, "clients": 2}


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): file_hash(path) for path in files}


def refuse_to_train(
    name: str, says: str, error: type[PrivauditError] = ConfigError
) -> None:
    for fresh in (False, True):
        with pytest.raises(error, match=says):
            train(name=name, **QUICK, fresh=fresh)


def thesis(folder: Path) -> Path:
    """Return a folder that never was a run, with names that a run has, too."""
    for name in ("kept/thesis.txt", "audits/2024/paper.tex", "notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"years of work on {name}")
    return folder


def test_a_folder_that_never_was_a_run_is_left_as_it_is() -> None:
    folder = thesis(runs_folder() / "mine")
    before, mode = content(folder), folder.stat().st_mode
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"audits/2024/paper\.tex.* and no run"):
            train(name="mine", **QUICK, resume=resume)
    assert content(folder) == before
    assert folder.stat().st_mode == mode
    assert {path.name for path in folder.iterdir()} == {"kept", "audits", "notes.md"}


def test_a_run_that_lost_its_header_keeps_the_rest(whole: Path) -> None:
    """Transcript, ledger and audits were wiped by a plain train."""
    (whole / "audits" / "mine").mkdir()
    (whole / "audits" / "mine" / "audit.json").write_text("{}")
    (whole / "run.json").unlink()
    before = content(whole)
    for resume in (False, True):
        with pytest.raises(ConfigError, match=r"lost it\. Restore run\.json from a co"):
            train(name="whole", rounds=2, epochs=1, resume=resume, seed=0)
    assert content(whole) == before


def test_fresh_removes_what_a_run_wrote_and_names_what_stays(cli: Cli) -> None:
    folder = thesis(runs_folder() / "mine")
    before = content(folder)
    for own in ("ledger.npz", "kept/after-0001.safetensors", "audits/benchmark/x.json"):
        (folder / own).parent.mkdir(exist_ok=True)
        (folder / own).write_text("of a run")
    (folder / "kept" / "after-work.safetensors").write_text("mine")
    (folder / "transcript").mkdir()
    (folder / "transcript" / "round-trip.safetensors").write_text("mine")
    words = "train --name mine --fresh --rounds 1 --clients 2 --set epochs=1"
    code, out, _ = cli(*words.split())
    assert code == 0
    named = "audits/2024/paper.tex, kept/after-work.safetensors, kept/thesis.txt"
    assert f"files that no run writes: {named}" in out
    after = content(folder)
    assert {name: after[name] for name in before} == before
    assert (folder / "kept" / "after-work.safetensors").read_text() == "mine"
    assert (folder / "transcript" / "round-trip.safetensors").read_text() == "mine"
    assert not (folder / "audits" / "benchmark").exists()
    assert Run(folder).is_complete
    assert len(foreign_files(folder)) == 5


@pytest.mark.parametrize("name", ["", "kept", "audits", "transcript"])
def test_a_link_in_a_runs_place_or_in_it_is_not_followed(
    name: str, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("personal.safetensors", "manifest.jsonl", "round-0000.safetensors"):
        (elsewhere / file).write_text("of somebody else")
    before = content(elsewhere)
    link = runs_folder() / "linked" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    refuse_to_train("linked", f"{link.name} is a link")
    assert content(elsewhere) == before


def test_a_linked_trace_grows_in_the_run_only(cut: Path, tmp_path: Path) -> None:
    shutil.move(cut / "trace.jsonl", tmp_path / "trace")
    (cut / "trace.jsonl").symlink_to(tmp_path / "trace")
    before = (tmp_path / "trace").read_bytes()
    assert train(name="cut", rounds=3, epochs=1, resume=True, seed=0).is_complete
    assert (tmp_path / "trace").read_bytes() == before
    assert not (cut / "trace.jsonl").is_symlink()


def test_a_linked_file_is_removed_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("of somebody else")
    folder = runs_folder() / "linked"
    (folder / "audits").mkdir(parents=True)
    (folder / "ledger.npz").symlink_to(tmp_path / "ledger")
    (folder / "audits" / "signals").symlink_to(tmp_path)
    clear_run(folder)
    assert (tmp_path / "ledger").read_text() == "of somebody else"
    assert foreign_files(folder) == ["audits/signals"]


def test_a_beginning_that_was_killed_is_begun_again(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privaudit.runs import training

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "save_header", kill)
        for name in ("new", "whole"):
            with pytest.raises(KeyboardInterrupt):
                train(name=name, **QUICK, fresh=True)
            assert (whole.parent / name / BEGUN).exists()
    assert train(name="new", **QUICK).is_complete
    assert train(name="whole", **QUICK).is_complete
    assert not (whole / BEGUN).exists()


def test_a_file_in_the_runs_place_is_left(whole: Path) -> None:
    (whole.parent / "file").write_text("mine")
    refuse_to_train("file", "file", PrivauditError)
    assert (whole.parent / "file").read_text() == "mine"
    shutil.rmtree(whole)


OWNER = {
    "host": "elsewhere",
    "machine": "another",
    "processes": "another",
    "pid": 7,
    "token": "x",
    "locked": True,
    "expiry": 0.3,
    "beat": "00000000001.000000",
}


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)


def mine(**changes: object) -> str:
    """Return a lease of this machine, renewed now."""
    here = {"machine": leases._machine(), "processes": leases._processes()}
    beat = time.monotonic()
    return json.dumps({**OWNER, **here, "pid": os.getpid(), "beat": beat, **changes})


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_refused(folder: Path) -> bool:
    try:
        with lock_run(folder):
            return False
    except RunInUseError:
        return True


@contextmanager
def renewed_by_another(folder: Path, beats: list[str]) -> Iterator[None]:
    """Let an owner on another machine renew its lease, its clock as it likes."""
    over, path = threading.Event(), folder / ".lease-0001"
    path.write_text(json.dumps(OWNER))

    def renew() -> None:
        while beats and not over.wait(0.05):
            path.write_text(json.dumps({**OWNER, "beat": beats.pop(0)}))

    thread = threading.Thread(target=renew)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_lease_keeps_others_away_and_is_given_back(
    tmp_path: Path,
) -> None:
    with lock_run(tmp_path):
        with pytest.raises(RunInUseError, match=f"process {os.getpid()} of "):
            lock_run(tmp_path).__enter__()
        assert left(tmp_path) == [".lease-0001", ".lock"]
    with lock_run(tmp_path):  # at once
        assert left(tmp_path) == [".lease-0002", ".lock"]


@pytest.mark.usefixtures("no_locks")
def test_the_lease_of_a_process_that_has_ended_is_taken_at_once(tmp_path: Path) -> None:
    gone = mine(pid=2**31 - 2, locked=False, expiry=60)
    (tmp_path / ".lease-0001").write_text(gone)
    with lock_run(tmp_path):
        assert left(tmp_path) == [".lease-0002", ".lock"]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),  # it had the lock that is free now
        ({"locked": False}, True),
        ({"locked": False, "beat": time.monotonic() - 61}, False),
        ({"locked": False, "ended": True}, False),
    ],
)
def test_on_one_machine_the_lock_the_process_and_its_clock_say_whether_it_is_there(
    changes: dict[str, object], refused: bool, tmp_path: Path
) -> None:
    (tmp_path / ".lease-0007").write_text(mine(**{"expiry": 60, **changes}))
    assert is_refused(tmp_path) == refused


@pytest.mark.parametrize("content", [json.dumps(OWNER), "", "[]", "{"])
def test_an_owner_elsewhere_that_gives_no_sign_for_its_expiry_is_replaced(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_LEASE", "0.3")
    (tmp_path / ".lease-0001").write_text(content)
    events: list[Event] = []
    started = time.monotonic()
    with watching("a", events.append), lock_run(tmp_path):
        assert time.monotonic() - started >= 0.3
        assert left(tmp_path) == [".lease-0002", ".lock"]
    assert isinstance(events[0], Phase)
    assert events[0].phase == "wait"


@pytest.mark.parametrize("beats", [["9e9", "9.1e9"], ["-5", "-6"], ["2", "1"]], ids=str)
def test_whatever_an_owners_clock_shows_a_change_is_a_sign_of_life(
    beats: list[str], tmp_path: Path
) -> None:
    with renewed_by_another(tmp_path, beats):
        assert is_refused(tmp_path)


def test_an_owner_is_waited_for_as_long_as_patience_lasts(tmp_path: Path) -> None:
    with renewed_by_another(tmp_path, ["2", "3"]), lock_run(tmp_path, patience=9.0):
        assert left(tmp_path) == [".lease-0002", ".lock"]  # it gave no third sign


def test_an_owner_renews_its_lease_and_holds_longer_than_its_expiry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_LEASE", "0.3")
    with lock_run(tmp_path) as lease:
        time.sleep(0.5)
        assert is_refused(tmp_path)
        lease.check()


def test_who_wakes_behind_its_last_look_finds_nothing_to_put_in_place(
    tmp_path: Path,
) -> None:
    prepared = tmp_path / ".run.json.abc.unfinished"
    prepared.touch()
    with lock_run(tmp_path):
        assert not prepared.exists()


def test_an_owner_renews_no_file_but_its_own(tmp_path: Path) -> None:
    first, second = FolderLeases(tmp_path), FolderLeases(tmp_path)
    assert first.make(1, b"first")
    (tmp_path / ".lease-0001").unlink()
    assert second.make(1, b"other")
    first.renew(1, b"wakes")
    assert second.newest() == (1, b"other")
    first.end(1, b"ended")
    assert second.newest() == (1, b"other")
    second.end(1, b"ended")
    assert second.newest() == (1, b"ended")


def test_who_was_late_with_a_number_that_is_gone_takes_the_next_one(
    tmp_path: Path,
) -> None:
    """Two others have held the run between its look and its file."""

    class LateLeases(FolderLeases):
        def newest(self) -> tuple[int, bytes]:
            found = super().newest()
            if not held:
                take_lease(FolderLeases(tmp_path)).end()
                held.append(take_lease(FolderLeases(tmp_path)))
            return found

    held = list[leases.Lease]()
    take_lease(FolderLeases(tmp_path)).end()
    with pytest.raises(RunInUseError):
        take_lease(LateLeases(tmp_path))
    held[0].check()
    held[0].end()


def test_an_owner_elsewhere_is_believed_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_LEASE", "0.03")
    monkeypatch.setattr(leases, "_BELIEVED", 0.2)
    (tmp_path / ".lease-0001").write_text(json.dumps({**OWNER, "expiry": 86400}))
    events: list[Event] = []
    with watching("a", events.append), lock_run(tmp_path):
        assert left(tmp_path) == [".lease-0002", ".lock"]
    assert isinstance(events[0], Phase)
    assert events[0].total == 1  # second at most, where the lease says a day


def test_a_number_that_no_lease_gets_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".lease-999999999999").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"has a \.lease-999999999999.* Remove it"):
        lock_run(tmp_path).__enter__()


def test_of_two_who_take_a_lease_one_gets_it(tmp_path: Path) -> None:
    first, second = FolderLeases(tmp_path), FolderLeases(tmp_path)
    assert first.make(3, b"first")
    assert not second.make(3, b"other")


@pytest.mark.parametrize("said", ["0", "-1", "nan", "inf", "soon", "1e9"])
def test_an_expiry_is_a_time(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_LEASE", said)
    with pytest.raises(ConfigError, match="takes seconds, above 0"):
        lock_run(tmp_path).__enter__()


def test_a_lock_that_fails_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        lock_run(tmp_path).__enter__()


SMALL: dict[str, Any] = {"seed": 0,
    "rounds": 3, "clients": 2, "epochs": 1, "shots": 8, "name": "one",
}  # fmt: skip
STALE = "stale"


def stand_still(lease: Lease) -> None:
    """Renew a lease no more, and the one beside it."""
    lease._over.set()
    lease._thread.join()
    if lease._beside is not None:
        stand_still(lease._beside)


def is_stale() -> bool:
    return threading.current_thread().name == STALE


def stale_owner(
    folder: Path, woke: threading.Event
) -> tuple[threading.Thread, list[str]]:
    """Begin to train as the owner that will stand still; it notes how it ended."""
    ended: list[str] = []

    def train_on() -> None:
        try:
            train(folder=folder, **SMALL)
        except RunInUseError as error:
            ended.append(str(error))
        finally:
            woke.set()

    thread = threading.Thread(target=train_on, name=STALE)
    thread.start()
    return thread, ended


@pytest.mark.parametrize("checks", [True, False], ids=["checks", "is behind its check"])
def test_an_owner_that_wakes_within_a_round_of_the_next_one_changes_nothing(
    checks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handles lead to files that are gone, even where it has looked at its lease."""
    monkeypatch.setenv("PRIVAUDIT_LEASE", "0.5")
    stalled, works, woke = (threading.Event() for _ in range(3))
    measured, checked = trainings._measured, Lease.check

    def measure(training: Any, index: int) -> Any:
        if is_stale() and index == 1:
            stand_still(training.lease)
            stalled.set()
            works.wait(60)
        elif not is_stale() and index == 2:
            works.set()
            woke.wait(60)
        return measured(training, index)

    def check(lease: Lease) -> None:
        if checks or not (is_stale() and works.is_set()) or renames.is_set():
            checked(lease)

    renames, added = threading.Event(), RoundFiles.add

    def add(files: RoundFiles, name: str, lines: list[str]) -> None:
        added(files, name, lines)
        if is_stale() and works.is_set():
            renames.set()

    monkeypatch.setattr(trainings, "_measured", measure)
    monkeypatch.setattr(Lease, "check", check)
    monkeypatch.setattr(RoundFiles, "add", add)
    thread, ended = stale_owner(tmp_path, woke)
    assert stalled.wait(60)
    time.sleep(0.6)
    run = train(folder=tmp_path, resume=True, **SMALL)
    thread.join()
    assert "was taken over by" in ended[0]
    assert_whole(run)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]


def assert_whole(run: Run) -> None:
    read = load_run(run.place)
    assert read.is_complete
    assert len(read.metrics) == SMALL["rounds"]
    assert read.transcript.check()
    assert train(folder=run.place.rpartition("/")[0], **SMALL).metrics == read.metrics


def test_an_owner_that_wakes_in_an_upload_replaces_nothing_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVAUDIT_LEASE", "0.5")
    url, first = f"memory://{tmp_path.name}/runs", list[str]()
    leases, uploaded = list[Lease](), RemoteFolder.upload
    recorded, features = TrainingState.record, cache_folder() / "features"

    def on_node(name: str) -> None:
        (tmp_path / name).mkdir()
        features.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "features").symlink_to(features)
        monkeypatch.setenv("PRIVAUDIT_CACHE", str(tmp_path / name))

    def record(training: Any, index: int, messages: Any) -> None:
        recorded(training, index, messages)
        if index == 1 and not first:
            leases.append(training.lease)

    def upload(store: RemoteFolder, name: str, path: Path) -> None:
        if leases and not first:
            first.append(name)
            stand_still(leases[0])
            time.sleep(0.6)
            on_node("next")
            assert train(folder=url, resume=True, **SMALL).is_complete
        elif len(first) == 1 and path.is_relative_to(tmp_path / "first"):
            first.append(name)
        uploaded(store, name, path)

    monkeypatch.setattr(TrainingState, "record", record)
    monkeypatch.setattr(RemoteFolder, "upload", upload)
    on_node("first")
    with pytest.raises(RunInUseError, match="was taken over by"):
        train(folder=url, **SMALL)
    assert first == ["kept/after-0002.safetensors"]
    on_node("third")
    assert_whole(load_run(f"{url}/one"))
    kept = [n for n in RemoteFolder(f"{url}/one").files() if n.startswith("kept/after")]
    assert kept == ["kept/after-0003.safetensors"]
