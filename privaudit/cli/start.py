"""The entry of the command line: bits are chosen before any library is loaded.

A command runs in a child process, and is over only where it says so at its end.

Code of other people may end a process: an owner's module, a plugin, a model's own code,
by ``os._exit(0)``, in a thread of its own, or when Python closes. Its exit code 0 would
pass for the gate's.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, get_args

from privaudit.core.ending import AGAIN, cleaned_up_when_ended
from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.portable_bits import Bits, chosen_bits, option_on, start_anew

# Commands whose numbers people hold against others', and what such numbers rest on.
_COMPARED = ("table", "selftest", "benchmark", "pretrain")
_TAKE_DEVICE = ("table", "benchmark", "projector")  # of these
_WITH_VALUES = [
    "--owner",
    "--device",
    "--memory",
    "--bits",
    "--key",
    "--subject",
]  # of verify
_MOST_THREADS = 1024
FAULT = 70
"""The exit code of a fault of ours, EX_SOFTWARE of sysexits.h: 1 is a finding."""


def run() -> None:
    """Run the command line, in a process that computes the bits that are asked for."""
    argv = sys.argv[1:]
    try:
        bits, threads = recomputed_bits(argv)
        start_anew(chosen_bits(argv, default_bits(argv), bits), threads)
    except ConfigError as error:
        sys.stderr.write(f"privaudit: {error}\n")
        sys.exit(2)
    try:
        from privaudit.cli.main import run

        run()
    except Exception:  # where there is no child that has shown it
        sys.excepthook(*sys.exc_info())
        sys.exit(FAULT)


def default_bits(argv: Sequence[str]) -> Bits | None:
    """Return the bits of a command that says nothing of them; None for any.

    Native on a device that is not the CPU, where no bits are portable: as with auto,
    which is one where there is CUDA.

    Example:
        >>> default_bits(["pretrain", "tiny-clip"]), default_bits(["train"])
        ('portable', None)
        >>> default_bits(["table", "plan.toml", "--device", "cuda"])
        'native'
    """
    words = [one for one in argv if not one.startswith("-")][:2]
    if not words or words[0] not in _COMPARED:
        return None
    device = option_on(argv, "--device")
    if device is None and not {*words}.isdisjoint(_TAKE_DEVICE):
        device = os.environ.get("PRIVAUDIT_DEVICE")
    return "portable" if device in (None, "", "cpu") else "native"


def recomputed_bits(argv: Sequence[str]) -> tuple[Bits | None, int | None]:
    """Return bits and threads of the run that ``verify --recompute`` makes again.

    Read before any library is loaded, and so unchecked: they only say how to compute.
    Of a run in a store, they are found out later, and what they are is said. Both are
    None where nothing is said, and of other commands.
    """
    if "--recompute" not in argv or "verify" not in argv:
        return None, None
    folder, names, rest = os.environ.get("PRIVAUDIT_RUNS") or "runs", [], [*argv]
    while rest:
        one = rest.pop(0)
        name, equals, value = one.partition("=")
        if name == "--runs" and (equals or rest):
            folder = value if equals else rest.pop(0)
        elif one in _WITH_VALUES and rest:
            rest.pop(0)
        elif not one.startswith("-"):
            names.append(one)
    return _computed(Path(folder), names[1] if len(names) > 1 else None)


def _computed(folder: Path, name: str | None) -> tuple[Bits | None, int | None]:
    """Return what a run's header says of bits and threads; None where it says nothing."""
    from pydantic_core import from_json

    from privaudit.core.limits import read_bytes
    from privaudit.runs.names import LATEST, among_runs, latest_names

    with suppress(PrivauditError, OSError, ValueError, LookupError, AttributeError):
        name = name or latest_names(read_bytes(folder / LATEST))[-1]
        path = among_runs(name, Path(name), folder)
        header = from_json(read_bytes(path / "run.json"))
        bits = header.get("computed", {}).get("bits", "native")
        threads = header["threads"]
        whole = type(threads) is int and 1 <= threads <= _MOST_THREADS
        if whole and bits in get_args(Bits):
            return bits, threads
    return None, None


HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_to_its_end(command: Callable[[], object]) -> NoReturn:
    """Run a command in a child, and exit as it did; exit code 2 if it was cut short.

    The child is forked, so nothing that makes threads may have been imported before. The
    command itself ends by SystemExit.
    """
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)  # until there is who takes them
    child = os.fork()
    if child:
        theirs.close()
        _wait(child, ours)
    ours.close()
    _become_child(theirs)
    try:
        with cleaned_up_when_ended():
            command()
    except SystemExit as end:
        theirs.send(bytes([end.code if isinstance(end.code, int) else 0]))
        raise
    except Exception:  # a fault of ours, to be shown
        sys.excepthook(*sys.exc_info())
    theirs.send(bytes([FAULT]))
    sys.exit(FAULT)


def _wait(child: int, ours: socket.socket) -> NoReturn:
    told: list[float] = []  # when the child was told to end

    def hand_on(number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        is_later = bool(told) and now - told[0] >= AGAIN
        if number != signal.SIGINT:
            told.append(now)
            number = signal.SIGKILL if is_later else number  # it may be in C code
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child, number)

    for number in HANDED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:  # of a signal: so that who started the command sees it
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    ours.setblocking(False)  # what the child has forked may still be there
    try:
        said = ours.recv(1)
    except BlockingIOError:
        said = b""
    if said == bytes([code]):
        sys.exit(code)
    sys.stderr.write(
        f"privaudit: the process ended with exit code {code} before the command had "
        "ended: other people's code ended it, as os._exit does. What was printed is no "
        "result. Look into the owner's module, plugins and models with code of their "
        "own.\n"
    )
    sys.exit(2)


def _become_child(theirs: socket.socket) -> None:
    """Take signals, Ctrl-C once, and end when the parent was killed."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interrupted())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDED_ON)
    threading.Thread(target=_end_with_parent, args=[theirs], daemon=True).start()


class _Interrupted:
    """Raises KeyboardInterrupt: a terminal sends Ctrl-C to the parent, too."""

    last = -AGAIN

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self.last = self.last, time.monotonic()
        if self.last - before >= AGAIN:
            raise KeyboardInterrupt


def _end_with_parent(theirs: socket.socket) -> None:
    theirs.recv(1)  # nothing is sent: it returns when the other end is closed
    os._exit(1)
