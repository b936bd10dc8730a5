"""Cases run in forks of a process that has imported everything, and are judged."""

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.corpus.case import Case

SECONDS = 20  # of processor time
PATIENCE = 400  # seconds on the wall: a machine may be busy
MEMORY = 2 * 2**30  # bytes beyond what is imported
_LONGEST = 1500  # characters of the one line


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        code: Exit code; 128 and more for a signal.
        said: What it printed, standard error last.
        seconds: Of processor time.
        waited: Seconds on the wall.
        memory: Bytes at the peak.
        problem: What is wrong with the outcome; empty if nothing is.
    """

    case: Case
    code: int
    said: str
    seconds: float
    waited: float
    memory: int
    problem: str


def run_cases(
    cases: Sequence[Case], world: Path, processes: int = 2
) -> Iterator[Outcome]:
    """Run cases, some at a time, and yield what came of each."""
    waiting, running = list(reversed(cases)), dict[int, _Running]()
    while waiting or running:
        while waiting and len(running) < processes:
            one = _Running(waiting.pop(), world)
            running[one.process] = one
        time.sleep(0.005)
        for process in list(running):
            if (done := running[process].poll()) is not None:
                del running[process]
                yield done


class _Running:
    """A case that is running in a process of its own, in its own copy of the world."""

    def __init__(self, case: Case, world: Path) -> None:
        self.case, self.started = case, time.monotonic()
        self.place = Path(tempfile.mkdtemp(prefix="corpus-"))
        shutil.copytree(world, self.place / "world", symlinks=True)
        self.log = self.place / "log"
        sys.stdout.flush()
        self.process = os.fork()
        if not self.process:
            _become(case, self.place / "world", self.log)

    def poll(self) -> Outcome | None:
        """Return what came of it, once it has ended; end it if it takes too long."""
        ended, status, used = os.wait4(self.process, os.WNOHANG)
        waited = time.monotonic() - self.started
        if not ended:
            if waited > PATIENCE:
                os.killpg(self.process, signal.SIGKILL)
            return None
        said = self.log.read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        shutil.rmtree(self.place, ignore_errors=True)
        problem = judge(self.case, code, said, memory)
        return Outcome(self.case, code, said, seconds, waited, memory, problem)


def judge(case: Case, code: int, said: str, memory: int) -> str:
    """Return what is wrong with an outcome; nothing where it is as it should be."""
    if code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):
        return f"hangs: over {SECONDS} s"
    if code >= 128:
        return f"dies of signal {code - 128}"
    if "Traceback (most recent call last)" in said:
        return "traceback: " + said.strip().splitlines()[-1][:200]
    if memory > MEMORY:
        return f"takes {memory >> 20} MiB"
    if code == 2:
        return "" if case.full_output else _of_line(said)
    if case.fine and code in (0, 1, 3):
        return ""
    return f"exit code {code}, and it is no good input"


def _of_line(said: str) -> str:
    """Return what is wrong with the line that says why an input is refused."""
    lines = [line for line in said.splitlines() if line.startswith("privaudit: ")]
    usage = [line for line in said.splitlines() if line.startswith("Usage: ")]
    if usage and not lines:
        return ""  # Click's own: its usage, and what is wrong
    if len(lines) != 1 or said.rstrip().splitlines()[-1] != lines[0]:
        return f"{len(lines)} lines say what is wrong: {said[-300:]!r}"
    line = lines[0]
    if len(line) > _LONGEST or not line.rstrip().endswith((".", "?", ")", "'", '"')):
        return f"the line is too long, or no sentence: {line[:300]!r}"
    return ""


def _become(case: Case, world: Path, log: Path) -> None:
    """Run a case in this process, which is a fork, and end it."""
    code = 99
    try:
        code = _run(case, world, log)
    finally:
        os._exit(code)


def _run(case: Case, world: Path, log: Path) -> int:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    full = os.open("/dev/full", os.O_WRONLY) if case.full_output else output
    os.dup2(full, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    case.spoil(world)
    os.chdir(world)
    os.environ.update({"PRIVAUDIT_RUNS": str(world / "runs"), **dict(case.environment)})
    coded = dict(case.environment).get("PYTHONIOENCODING", "utf-8")
    sys.stdout = open(1, "w", encoding=coded, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=coded, closefd=False)  # noqa: SIM115
    _bound()
    argv = [part.replace("WORLD", str(world)) for part in case.argv]
    return _exit_code(case.call or (lambda: _command(argv)))


def _bound() -> None:
    """Bound this process's memory and time."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _command(argv: Sequence[str]) -> None:
    from privaudit.cli import main as cli

    sys.argv = ["privaudit", *argv]
    cli.run()


def _exit_code(call: Callable[[], object]) -> int:
    """Return the exit code that a call would end a Python process with."""
    import traceback

    from privaudit.core.errors import PrivauditError, one_line

    code = 0
    try:
        call()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
    except PrivauditError as error:
        sys.stderr.write(f"privaudit: {one_line(str(error))}\n")
        code = 2
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    sys.stdout.flush()
    return code
