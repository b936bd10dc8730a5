"""A run that was killed, at any moment, resumes to the same bytes."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from privaudit import load_run, train
from privaudit.core.errors import ConfigError, StorageError
from tests.conftest import train_and_stop
from tests.places import ROOT

QUICK: dict[str, Any] = {"seed": 0, "rounds": 4, "epochs": 1}
KILLED = """
import os, signal, sys
from importlib import import_module
from privaudit import train
from privaudit.runs.config import make_config
from tests.elsewhere import compute_elsewhere

plain = os.fsync

def train_until(point):
    left = point

    def fsync(handle):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        plain(handle)

    os.fsync = fsync
    train("promptfl", seed=0, rounds=4, epochs=1, name=f"killed-{point}", participation=0.6)

# Imports once what all use, and computes nothing: threads of torch do not live in forks.
make_config("promptfl")
compute_elsewhere(setattr)
if "TEST_PERTURBATION" in os.environ:
    kept = import_module("tests.perturbed").perturb_products()
for name in (
    "privaudit.datasets.images.digits",
    "privaudit.runs.training",
    "privaudit.models.tiny_clip.loading",
    "sklearn.datasets",
):
    import_module(name)
for point in map(int, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        train_until(point)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""


def content(run: Path) -> dict[str, bytes]:
    parts = [*(run / "transcript").iterdir(), *(run / "kept").iterdir()]
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted([*parts, run / "trace.jsonl"])
    }


@pytest.fixture
def whole() -> Path:
    return train("promptfl", **QUICK, name="whole", participation=0.6).path


@pytest.mark.slow
def test_kill_9_and_resume_ends_with_the_same_bytes(whole: Path) -> None:
    points = random.Random(20).sample(range(1, 42), 5)
    environment = {**os.environ, "PYTHONHASHSEED": "20", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, *map(str, points)]
    subprocess.run(command, env=environment, check=True)
    for point in points:
        name = f"killed-{point}"
        run = train("promptfl", **QUICK, name=name, participation=0.6, resume=True)
        assert content(run.path) == content(whole), point
        assert run.transcript.head == load_run("whole").transcript.head


@pytest.mark.slow
def test_a_disk_that_fills_up_at_any_write_loses_nothing(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for every single write, with an error in the kill's place."""
    plain, done = os.fsync, False
    for point in range(1, 66, 3):
        left = point

        def failing(handle: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(28, "No space left on device")
            plain(handle)

        monkeypatch.setattr(os, "fsync", failing)
        try:
            train("promptfl", **QUICK, name="full", participation=0.6, fresh=True)
            done = True
        except StorageError:
            done = False
        monkeypatch.setattr(os, "fsync", plain)
        run = train("promptfl", **QUICK, name="full", participation=0.6, resume=True)
        assert content(run.path) == content(whole), point
    assert done


def test_an_interrupted_run_says_what_to_do(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_and_stop(1, "promptfl", **QUICK)
    with pytest.raises(
        ConfigError, match=r"stopped after 1 of 4 rounds\. Add --resume"
    ):
        train("promptfl", **QUICK, name="cut")
    with pytest.raises(ConfigError, match="another configuration"):
        train("promptfl", **{**QUICK, "seed": 3}, name="cut", resume=True)
    assert train("promptfl", **QUICK, name="cut", resume=True).is_complete


def test_a_finished_run_is_not_trained_again(whole: Path) -> None:
    before = (whole / "run.json").stat().st_mtime_ns
    train("promptfl", **QUICK, name="whole", participation=0.6)
    assert (whole / "run.json").stat().st_mtime_ns == before
