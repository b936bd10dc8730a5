"""A recorder raises nothing into a federation, whatever clients send and disks do."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, lint, load_run
from privaudit.core.errors import ConfigError, StorageError
from privaudit.core.tensors import Tensors
from privaudit.recording.bundle import INCOMPLETE
from privaudit.recording.importing import finish_recording
from privaudit.recording.owner import use_owner
from privaudit.recording.recorder import Recorder
from tests.privaudit.recording.small_federation import (
    NAMES,
    Linear,
    run_federation,
    toss,
)

W = {"weight": torch.ones(4, 192), "bias": torch.ones(4)}
NOT_RECORDED: dict[str, tuple[Any, Any]] = {
    "nothing": ({}, 5),
    "no mapping": (3, 5),
    "no tensor": ({"weight": object()}, 5),
    "objects": ({"weight": np.array([None, {}])}, 5),
    "texts": ({"weight": np.array(["a", "b"])}, 5),
    "dates": ({"weight": np.array(["2026-01-01"], dtype="datetime64[D]")}, 5),
    "rows of two lengths": ({"weight": [[1.0], [1.0, 2.0]]}, 5),
    "complex": ({n: t.to(torch.complex64) for n, t in W.items()}, 5),
    "sparse": ({"weight": torch.ones(2, 2).to_sparse()}, 5),
    "no memory": ({"weight": torch.ones(1, device="meta")}, 5),
    "a name of 20 MB": ({**W, "x" * 20_000_000: torch.ones(1)}, 5),
    "many names": ({str(n): torch.ones(1) for n in range(200_000)}, 5),
    "no weight": (W, None),
    "a negative weight": (W, -1),
    "a weight of NaN": (W, np.nan),
    "an infinite weight": (W, np.inf),
    "a weight of many digits": (W, 10**400),
    "a weight beyond float32": (W, 1e300),
    "a weight in words": (W, "many"),
    "two weights": (W, torch.ones(2)),
}
RECORDED: dict[str, tuple[Any, Any]] = {
    "not finite": ({**W, "bias": torch.tensor([np.nan, np.inf, 0, 0])}, 5),
    "a tensor less": ({"weight": W["weight"]}, 5),
    "a tensor more": ({**W, "more": torch.ones(3)}, 5),
    "other shapes": ({"weight": torch.ones(2, 2), "bias": torch.ones(())}, 5),
    "empty": ({"weight": torch.ones(0, 192), "bias": torch.ones(0)}, 5),
    "other types": ({n: t.to(torch.int8) for n, t in W.items()}, 5),
    "truth values": ({n: t > 0 for n, t in W.items()}, 5),
    "huge": ({n: t * 3e38 for n, t in W.items()}, 5),
    "odd names": ({**W, "\ud800\x1b[31m../../x\n": torch.ones(1)}, 5),
    "weighs nothing": (W, 0),
    "weighs much": (W, 2.0**62),
}


def odd_federation(recorder: Recorder, tensors: Any, weight: Any) -> None:
    """Run it; the second client sends the same odd update in each round."""

    def say(said: Recorder, at: int, client: str, sent: Tensors, count: int) -> None:
        if client == NAMES[1]:
            said.update(at, client, tensors, weight=weight)
        else:
            said.update(at, client, sent, weight=count)

    run_federation(recorder, toss(), Linear(), say=say)


@pytest.mark.parametrize("odd", NOT_RECORDED)
def test_what_is_no_update_is_left_out_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    with Recorder(tmp_path / "run", ledger=toss(), weight="n") as recorder:
        odd_federation(recorder, *NOT_RECORDED[odd])
    said = [r for r in caplog.records if r.name == "privaudit.recording"]
    assert len(said) == 1
    assert f"What {NAMES[1]} sent in round 0 is not recorded" in said[0].getMessage()
    assert len(said[0].getMessage()) < 1000
    run = load_run(tmp_path / "run")
    assert run.participants == [(NAMES[0], NAMES[2])] * 2
    assert run.config.settings["left_out"] == {NAMES[1]: 2}


@pytest.mark.parametrize("odd", RECORDED)
def test_an_odd_update_is_recorded_as_it_was_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: str
) -> None:
    with Recorder(tmp_path / "run", ledger=toss(), weight="n") as recorder:
        odd_federation(recorder, *RECORDED[odd])
    run = load_run(tmp_path / "run")
    assert run.participants == [NAMES] * 2
    assert not caplog.records


@pytest.mark.parametrize("odd", ["complex", *RECORDED])
def test_such_a_recording_is_linted_and_audited(tmp_path: Path, odd: str) -> None:
    sent = {**RECORDED, **NOT_RECORDED}[odd]
    with Recorder(tmp_path / "run", ledger=toss(), weight="n") as recorder:
        odd_federation(recorder, *sent)
    run = load_run(tmp_path / "run")
    with use_owner(Linear()):
        assert not [one for one in lint(run) if one.severity == "error"]
        audit = Auditor(run).attack("server-reconstruct", shadows=0)
    attacked = {client.client for client in audit.headline.clients}
    assert {NAMES[0], NAMES[2]} <= attacked


def test_a_second_update_in_a_round_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two nodes that claim one partition would hide one behind the other."""
    recorder = Recorder(tmp_path / "run")
    assert recorder.update(0, "a", {"w": torch.ones(1)})
    assert not recorder.update(0, "a", {"w": torch.zeros(1)})
    assert "second update" in caplog.text
    assert recorder.update(1, "a", {"w": torch.ones(1)})


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


def delete_the_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    shutil.rmtree(folder)


def put_a_file_there(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    shutil.rmtree(folder / "transcript")
    (folder / "transcript").write_text("")


@pytest.mark.parametrize("fail", [fill_the_disk, delete_the_folder, put_a_file_there])
def test_a_recorder_that_cannot_write_stops_and_no_run_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    folder, ledger = tmp_path / "run", toss()

    def say(said: Recorder, at: int, client: str, sent: Tensors, count: int) -> None:
        if (at, client) == (1, NAMES[0]):
            fail(monkeypatch, folder)
        said.update(at, client, sent, weight=count)

    with Recorder(folder, ledger=ledger, weight="n") as recorder:
        run_federation(recorder, ledger, Linear(), rounds=4, say=say)
    monkeypatch.undo()
    assert recorder.run is None
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "no run is made of it" in errors[0].getMessage()
    if fail is not delete_the_folder:
        assert (folder / INCOMPLETE).exists()
        with pytest.raises(ConfigError, match="was not recorded whole"):
            finish_recording(folder, ledger)
        with pytest.raises(ConfigError, match=INCOMPLETE):
            Recorder(folder)


def test_a_run_that_cannot_be_written_at_the_end_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("Cannot write: the disk is full.")

    place = "privaudit.recording.recorder.finish_recording"
    with Recorder(tmp_path / "run", ledger=toss(), weight="n") as recorder:
        run_federation(recorder, toss(), Linear())
        monkeypatch.setattr(place, full)
    assert "no run yet: Cannot write" in caplog.text
    assert finish_recording(tmp_path / "run", toss()).is_complete
