"""One owner at a time: the system's lock, and a lease where there is none."""

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError, RunInUseError, StorageError
from privaudit.federated.runs.folder import lease as leases
from privaudit.federated.runs.folder.lease import take_lease
from privaudit.federated.runs.folder.run_lock import FolderLeases, lock_run
from privaudit.statistics.progress import Event, Phase, watching

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
