"""SIGTERM and SIGHUP as an exception: what is temporary goes before the process does."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

AGAIN = 1.0
"""Seconds in which a second signal is the same: from terminal and parent, or to a group."""

_SIGNALS = ("SIGTERM", "SIGHUP")  # Windows lacks the second


class Ended(BaseException):
    """The process was told to end; whoever catches it raises it again."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class _Ending:
    """Raises :class:`Ended` once; a later signal ends the process at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.taken = 0.0
        self.is_over = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None and not self.is_over:
            self.number, self.taken = number, now
            raise Ended(number)
        if self.is_over or now - self.taken >= AGAIN:
            _end_by(number)


@contextmanager
def cleaned_up_when_ended() -> Iterator[None]:
    """Let a signal that ends the process leave by way of ``finally``, and end it then.

    Temporary folders, the copy of a run's key among them, would stay otherwise. The
    process ends also where other code has swallowed the exception. Where another one is
    open already, or in another thread than the main one, which alone takes signals, this
    does nothing; nor for a signal that is ignored, as of nohup.
    """
    numbers = [getattr(signal, one) for one in _SIGNALS if hasattr(signal, one)]
    is_main = threading.current_thread() is threading.main_thread()
    before = {one: signal.getsignal(one) for one in numbers} if is_main else {}
    ours = {n: old for n, old in before.items() if old == signal.SIG_DFL}
    ending = _Ending()
    try:
        for number in ours:
            signal.signal(number, ending)
        yield
    except Ended:
        if ending.number is None:
            raise
    finally:
        ending.is_over = True
        for number, handler in ours.items():
            signal.signal(number, handler)
        if ending.number is not None:
            _end_by(ending.number)


def _end_by(number: int) -> NoReturn:
    """End as the signal does by itself, so that who started the process sees it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise Ended(number)  # while it is blocked
