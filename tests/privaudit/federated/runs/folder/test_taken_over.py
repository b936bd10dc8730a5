"""An owner that stands still, loses its run, and wakes in the middle of a round."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from privaudit import load_run, train
from privaudit.core.errors import RunInUseError
from privaudit.core.storage import cache_folder
from privaudit.federated.runs import training as trainings
from privaudit.federated.runs.folder.lease import Lease
from privaudit.federated.runs.folder.remote_store import RemoteFolder
from privaudit.federated.runs.folder.round_files import RoundFiles
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.training_state import TrainingState

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
