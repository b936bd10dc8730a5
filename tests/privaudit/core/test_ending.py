"""A process that is told to end cleans up first, once, and then ends by the signal."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from privaudit.core.ending import cleaned_up_when_ended

CODE = """
import os, signal, sys, tempfile, time
from privaudit.core.ending import cleaned_up_when_ended
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
{before}
with cleaned_up_when_ended(), cleaned_up_when_ended():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        try:
            os.kill(os.getpid(), signal.{name})
            print("went on")
        finally:
            {cleaning}
            print("cleaned", flush=True)
"""


def ended(
    folder: Path, name: str, before: str = "", cleaning: str = ""
) -> tuple[int, str]:
    code = CODE.format(name=name, before=before, cleaning=cleaning)
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("cleaning", ["", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_what_is_temporary_goes_and_the_signal_ends_the_process(
    name: str, cleaning: str, tmp_path: Path
) -> None:
    """The same signal again, as a group is sent it, disturbs no cleaning up."""
    number = getattr(signal, name)
    assert ended(tmp_path, name, cleaning=cleaning) == (-number, "cleaned\n")
    assert not [*tmp_path.iterdir()]


def test_a_later_signal_ends_at_once(tmp_path: Path) -> None:
    later = "time.sleep(1.1); os.kill(os.getpid(), signal.SIGTERM)"
    assert ended(tmp_path, "SIGTERM", cleaning=later) == (-signal.SIGTERM, "")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"  # as nohup does
    assert ended(tmp_path, "SIGHUP", ignored) == (0, "went on\ncleaned\n")


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with cleaned_up_when_ended():
        pass
    assert signal.getsignal(signal.SIGTERM) is before
