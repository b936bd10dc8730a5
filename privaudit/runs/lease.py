"""A lease on a run: who may write in it, renewed while they do, and taken over after.

A lease is a file with a number. Whoever makes the next number holds the run; nobody
else can make the same one. The owner renews the file, and others judge by that whether
it is still there. They compare no clocks of two machines: an owner elsewhere is gone
when its file has not changed for its expiry, by the clock of who looks at it. Only on
one machine, whose processes share a clock, the time in the file itself counts.

An owner that stood still for longer finds a higher number when it wakes, and stops.

Source: C. G. Gray, D. R. Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for
Distributed File Cache Consistency", SOSP 1989; the numbers are what M. Burrows, "The
Chubby Lock Service for Loosely-Coupled Distributed Systems", OSDI 2006, section 2.4,
calls sequencers.
"""

import math
import os
import re
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import cache
from json import dumps
from pathlib import Path
from typing import IO, Annotated, Literal, Protocol, runtime_checkable

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from privaudit.core.errors import ConfigError, PrivauditError, RunInUseError, one_line
from privaudit.core.storage import add_lines, storage_errors
from privaudit.statistics.progress import Phase, tell

EXPIRY = "PRIVAUDIT_LEASE"
LEASE = re.compile(r"\.lease-(\d{4,12})")  # its file's name
MOST_BYTES = 4096  # of a lease's file that are read
_USUAL, _LONGEST = 60.0, 86400.0  # seconds
_BELIEVED = 600.0  # seconds without a sign for which another's lease counts at most
_OWN_EXPIRIES = 10  # of one's own leases, if that is more
_LAST = 10**9  # what no number reaches
_BEATS = 6  # renewals within an expiry
_LOOKS = 30  # of somebody else, within an expiry
_BYTES = 512  # of a lease's file: writing over it leaves nothing of before

Text = Annotated[str, Field(max_length=300)]


@runtime_checkable
class LeaseFiles(Protocol):
    """Where the leases of one run lie."""

    where: str
    pause: float  # seconds between two looks at a lease that is held

    def newest(self) -> tuple[int, bytes]:
        """Return the highest number and its content; 0 where there is none."""

    def make(self, number: int, content: bytes) -> bool:
        """Make a file that is not there; say whether it was so."""

    def renew(self, number: int, content: bytes) -> None:
        """Replace the content of a file of one's own."""

    def end(self, number: int, content: bytes) -> None:
        """Give a lease back: ``content`` says so. Its file stays: no number is twice."""

    def drop_before(self, number: int) -> None:
        """Remove the files with lower numbers."""


@dataclass(frozen=True)
class LeaseOwner:
    """What a lease says.

    Attributes:
        host: The machine, for people.
        machine: Names the machine, and the time since it started: a clock of its own.
        processes: Names the space in which ``pid`` means a process.
        pid: Number of the process, there.
        token: Random: no two leases have the same.
        locked: Whether the owner holds the system's lock on the run as well.
        expiry: Seconds without a renewal after which it may be taken over.
        beat: When it was last renewed, in seconds of its machine's monotonic clock.
        ended: Whether it was given back.
    """

    host: Text
    machine: Text
    processes: Text
    pid: int
    token: Text
    locked: bool
    expiry: Annotated[float, Field(gt=0, le=_LONGEST)]
    beat: float
    ended: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether it is a process of this machine that has ended."""
        if self.processes != _processes() or sys.platform == "win32":
            return False  # there, a signal of 0 would end the process
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            return False
        return False

    def renewed(self) -> bytes:
        """Return its file's content as of now, always of one length."""
        beat = f"{time.monotonic():020.6f}"  # as wide as any, for a reader in between
        return dumps({**asdict(self), "beat": beat}).encode().ljust(_BYTES)


_OWNER = TypeAdapter(LeaseOwner)


def _read(content: bytes) -> LeaseOwner | None:
    """Return what a lease says; None while it is written, or if it was damaged."""
    try:
        return _OWNER.validate_json(content)
    except ValidationError:
        return None


class Lease:
    """A run that this process holds, and renews in the background until the end."""

    def __init__(
        self,
        files: LeaseFiles,
        number: int,
        owner: LeaseOwner,
        beside: "Lease | None" = None,
    ) -> None:
        self._files, self._number, self._owner = files, number, owner
        self._beside = beside
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Go on only if nobody else has taken the run over meanwhile.

        Raises:
            RunInUseError: Somebody has: this process stood still for too long.
        """
        if self._beside is not None:
            self._beside.check()
        number, content = self._files.newest()
        if number == self._number and self._owner.token.encode() in content:
            return
        raise RunInUseError(
            f"{self._files.where} was taken over by {_who(_read(content))}, since this "
            f"process did not renew its lease for {self._owner.expiry:g} s: it stood "
            "still, or could not write there. It stops, and the other goes on from the "
            "last round that counts. Wait until the other is done."
        )

    def end(self) -> None:
        """Give it back."""
        self._over.set()
        self._thread.join()
        with suppress(PrivauditError, OSError):  # who cannot: it expires
            ended = replace(self._owner, ended=True)
            self._files.end(self._number, ended.renewed())

    def _renew(self) -> None:
        while not self._over.wait(min(self._owner.expiry, _BELIEVED) / _BEATS):
            with suppress(PrivauditError, OSError):  # the next one may succeed
                self._files.renew(self._number, self._owner.renewed())


def take_lease(
    files: LeaseFiles,
    *,
    lock: Callable[[], bool] = lambda: False,
    patience: float = 0.0,
    beside: Lease | None = None,
) -> Lease:
    """Take the lease on a run, at once or after an owner that is gone.

    Whether an owner elsewhere is gone shows within its expiry; until then this waits,
    but for no more than ten minutes, or ten times the expiry of one's own leases.

    Args:
        files: Where the run's leases lie.
        lock: Says whether this process holds the system's lock on it.
        patience: Seconds to wait for an owner that is there.
        beside: Another that is to hold as well.

    Raises:
        RunInUseError: Another process holds it.
        ConfigError: PRIVAUDIT_LEASE is no expiry, or a file has a number that no lease
            gets.
        StorageError: It cannot be written there.
    """
    expiry = expiry_of_leases()
    longest = max(_BELIEVED, _OWN_EXPIRIES * expiry)
    watched = _WatchedLease(longest)
    give_up = time.monotonic() + patience
    while True:
        locked = lock()
        number, content = files.newest()
        if number >= _LAST:
            raise ConfigError(
                f"{files.where} has a {lease_name(number)}, and no lease gets such a "
                "number: somebody else made that file. Remove it."
            )
        state = watched.judge(number, content, locked)
        if state == "free":
            owner = _me(locked, expiry)
            if files.make(number + 1, owner.renewed()):
                if files.newest()[0] == number + 1:
                    lease = Lease(files, number + 1, owner, beside)
                    files.drop_before(number + 1)
                    return lease
                # Others went on meanwhile, and removed the file of this number.
                files.end(number + 1, replace(owner, ended=True).renewed())
                continue
        elif time.monotonic() >= give_up + (
            0 if state == "held" else longest + watched.pause
        ):
            raise RunInUseError(
                f"Another process is training {files.where}: {_who(_read(content))}. "
                "Wait until it is done, or take another --name."
            )
        elif state == "unknown":
            watched.tell()
        time.sleep(watched.pause if state == "unknown" else files.pause)


class _WatchedLease:
    """A lease that is looked at again and again, by one's own clock.

    Args:
        longest: Seconds for which it is believed, whatever it says.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._seen: tuple[int, bytes] | None = None
        self._since, self._expiry = 0.0, _USUAL
        self._owner: LeaseOwner | None = None

    def judge(
        self, number: int, content: bytes, locked: bool
    ) -> Literal["free", "held", "unknown"]:
        """Say whether a lease may be taken; unknown is what has to be looked at longer.

        ``locked``: whether whoever asks holds the system's lock on the run.
        """
        if not number:
            return "free"
        changed = self._seen is not None and (number, content) != self._seen
        if (number, content) != self._seen:
            self._seen, self._since = (number, content), time.monotonic()
        self._owner = owner = _read(content)
        expiry = owner.expiry if owner else expiry_of_leases()
        self._expiry = min(expiry, self._longest)
        if owner and owner.ended:
            return "free"
        if owner and owner.machine == _machine():
            age = time.monotonic() - owner.beat
            is_gone = locked if owner.locked else owner.is_gone
            if age >= 0:
                return "free" if is_gone or age >= self._expiry else "held"
        if changed and owner:
            return "held"
        is_old = time.monotonic() - self._since >= self._expiry
        return "free" if is_old else "unknown"

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return self._expiry / _LOOKS

    def tell(self) -> None:
        """Tell whoever watches that this waits, and for how long."""
        waited = int(time.monotonic() - self._since)
        most = math.ceil(self._expiry)
        tell(Phase("", "wait", _who(self._owner), min(waited, most), most))


def lease_name(number: int) -> str:
    """Return the name of a lease's file."""
    return f".lease-{number:04d}"


def lease_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the leases among files."""
    return [int(match[1]) for match in map(LEASE.fullmatch, names) if match]


def expiry_of_leases() -> float:
    """Return after how many seconds without a sign this process's leases expire.

    Raises:
        ConfigError: The environment says something else.
    """
    said = os.environ.get(EXPIRY, str(_USUAL))
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _LONGEST:
        raise ConfigError(
            f"{EXPIRY} is {said[:40]!r}, and takes seconds, above 0 and up to "
            f"{_LONGEST:g}. Set one such as {_USUAL:g}, or unset it."
        )
    return seconds


def _me(locked: bool, expiry: float) -> LeaseOwner:
    return LeaseOwner(
        host=socket.gethostname()[:100],
        machine=_machine(),
        processes=_processes(),
        pid=os.getpid(),
        token=secrets.token_hex(8),
        locked=locked,
        expiry=expiry,
        beat=0.0,
    )


def _who(owner: LeaseOwner | None) -> str:
    if owner is None:
        return "an unknown process"
    return one_line(f"process {owner.pid} of {owner.host}")


@cache
def _machine() -> str:
    """Name this machine since its start: where the monotonic clock is one."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()[:100]} {uuid.getnode():x}"


@cache
def _processes() -> str:
    """Name the space of process numbers: a container has its own."""
    with suppress(OSError):
        return f"{_machine()} {Path('/proc/self/ns/pid').readlink()}"
    return _machine()


METRICS, MANIFEST = "metrics.jsonl", "transcript/manifest.jsonl"


class RoundFiles(ExitStack):
    """Adds lines to files as they were when the run was taken up.

    Whoever takes the run over puts new files in their place, so that an owner that
    stood still, and wakes behind its last look at its lease, writes into no file of the
    run.
    """

    def __init__(self, path: Path, lease: Lease) -> None:
        super().__init__()
        self._path, self._lease = path, lease
        self._files: dict[str, IO[str]] = {}

    def open(self, *names: str) -> None:
        """Open files, which nobody else has replaced since the lease was taken.

        Raises:
            RunInUseError: Somebody may have.
            StorageError: They cannot be written.
        """
        for name in names:
            with storage_errors(self._path / name):
                file = (self._path / name).open("a", encoding="utf-8")
            self._files[name] = self.enter_context(file)
        self._lease.check()

    def add(self, name: str, lines: list[str]) -> None:
        """Append whole lines to an open file and wait until they are on the disk.

        Raises:
            RunInUseError: The run is another's by now.
            StorageError: They cannot be written.
        """
        self._lease.check()
        with storage_errors(self._path / name):
            add_lines(self._files[name], lines)
