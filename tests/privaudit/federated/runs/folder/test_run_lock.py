"""Where the system has no locks, a file stands for one; it is never without."""

import errno
import fcntl
import json
import socket
from pathlib import Path

import pytest

from privaudit.core.errors import RunInUseError, StorageError
from privaudit.federated.runs.folder.run_lock import OWNER, lock_run


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_file_keeps_others_away_and_goes_at_the_end(
    tmp_path: Path,
) -> None:
    with lock_run(tmp_path):
        with pytest.raises(RunInUseError, match="Another process is training"):
            lock_run(tmp_path).__enter__()
        assert (
            json.loads((tmp_path / OWNER).read_text())["host"] == socket.gethostname()
        )
    assert not (tmp_path / OWNER).exists()


@pytest.mark.usefixtures("no_locks")
def test_the_lock_of_a_process_that_is_gone_is_taken_away(tmp_path: Path) -> None:
    gone = {"host": socket.gethostname(), "pid": 2**31 - 2, "token": "x"}
    (tmp_path / OWNER).write_text(json.dumps(gone))
    with lock_run(tmp_path):
        assert json.loads((tmp_path / OWNER).read_text())["token"] != "x"
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.usefixtures("no_locks")
@pytest.mark.parametrize("content", ['{"host": "elsewhere", "pid": 1}', "", "[]"])
def test_the_lock_of_another_machine_is_left_and_says_how_to_go_on(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / OWNER).write_text(content)
    with pytest.raises(RunInUseError, match=r"remove .*\.lock\.owner"):
        lock_run(tmp_path).__enter__()
    assert (tmp_path / OWNER).read_text() == content


def test_a_lock_that_fails_otherwise_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        lock_run(tmp_path).__enter__()
