"""A command runs in a child process, and is over only where it says so at its end.

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
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from privaudit.core.ending import AGAIN, cleaned_up_when_ended

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
    theirs.send(bytes([1]))
    sys.exit(1)


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
