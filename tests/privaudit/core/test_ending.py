"""A process that is told to end cleans up first, once, and then ends by the signal."""

import signal
import subprocess
import sys
import time
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


def test_a_swallowed_signal_ends_the_process_all_the_same(tmp_path: Path) -> None:
    """As in a destructor, or where a plugin catches everything: 0 would be a pass."""
    swallowing = (
        "kill = os.kill\n"
        "def swallowed(*given):\n"
        "    with __import__('contextlib').suppress(BaseException):\n"
        "        kill(*given)\n"
        "os.kill = swallowed"
    )
    expected = (-signal.SIGTERM, "went on\ncleaned\n")
    assert ended(tmp_path, "SIGTERM", swallowing) == expected


def test_a_second_signal_ends_a_command_that_is_inside_c_code() -> None:
    code = (
        "from privaudit.cli.start import run_to_its_end\n"
        "run_to_its_end(lambda: print('here', flush=True) or sum(range(10**12)))"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "here\n"
        time.sleep(0.5)  # it is then mostly inside, and else ends by the first signal
        process.terminate()
        time.sleep(1.2)
        process.terminate()
        assert process.wait(timeout=30) in (-signal.SIGKILL, -signal.SIGTERM)


def test_a_signal_while_the_copy_is_removed_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, shutil, sys, tempfile\n"
        "from pathlib import Path\n"
        "from privaudit.core.ending import cleaned_up_when_ended\n"
        "from privaudit.report.export.recompute import _removed_afterwards\n"
        "tempfile.tempdir, remove = sys.argv[1], os.unlink\n"
        "def removed(*given, **named):\n"
        "    os.unlink = remove\n"
        "    remove(*given, **named)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "with cleaned_up_when_ended(), _removed_afterwards() as folder:\n"
        "    for name in 'abc':\n"
        "        Path(folder, name).touch()\n"
        "    os.unlink = removed\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGTERM
    assert not [*tmp_path.iterdir()]


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"  # as nohup does
    assert ended(tmp_path, "SIGHUP", ignored) == (0, "went on\ncleaned\n")


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with cleaned_up_when_ended():
        pass
    assert signal.getsignal(signal.SIGTERM) is before
