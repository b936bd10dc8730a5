"""A command from its start, in the bits that are asked for, to its end or its being ended."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privaudit.cli.start import FAULT, default_bits, recomputed_bits
from privaudit.core.errors import PluginError, without_exits
from privaudit.core.portable_bits import chosen_bits, portable_environment
from tests.places import ROOT


def command(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return in_no_bits(folder, "-m", "privaudit", *argv)


def in_no_bits(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    known = portable_environment({})
    others = {name: value for name, value in os.environ.items() if name not in known}
    return subprocess.run(
        [sys.executable, *argv],
        env={**others, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_run_says_its_bits(tmp_path: Path) -> None:
    train = ("train", "--seed", "0", "--rounds", "1", "--name", "one", "--quiet")
    assert command(tmp_path, *train, "--bits", "portable").returncode == 0
    header = json.loads((tmp_path / "runs/one/run.json").read_text())
    assert header["computed"]["bits"] == "portable"
    assert header["computed"]["builds"]["numpy"]


def test_unknown_bits_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    done = command(tmp_path, "train", "--bits", "exact")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("privaudit: There are no bits 'exact'. Use --bits")


def test_a_device_of_the_environment_counts_where_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVAUDIT_DEVICE", "cuda")
    lines = ("table a.toml", "table a.toml --device cpu", "pretrain surrogate-clip")
    found = [default_bits(line.split()) for line in lines]
    assert found == ["native", "portable", "portable"]


@pytest.mark.parametrize(
    "words",
    [
        ("a",),
        ("--runs", "there", "--device", "cpu", "a"),
        ("--runs=there",),
        ("there/a",),
    ],
)
def test_a_run_that_is_computed_again_says_its_bits_and_threads(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded that could check it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVAUDIT_RUNS", "there")
    monkeypatch.setenv("PRIVAUDIT_BITS", "native")
    header = {"threads": 2, "computed": {"bits": "portable"}, "more": 1}
    (tmp_path / "there" / "a").mkdir(parents=True)
    (tmp_path / "there" / "a" / "run.json").write_text(json.dumps(header))
    (tmp_path / "there" / "latest").write_text("b\na\n")
    argv = ["verify", "--recompute", *words]
    assert recomputed_bits(argv) == ("portable", 2)
    assert chosen_bits(argv, None, "portable") == "portable"
    assert chosen_bits([*argv, "--bits", "native"], None, "portable") == "native"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"threads": 10000}', '{"threads": 1, "computed": 3}']
)
def test_a_run_that_says_nothing_changes_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    for place in map(str, (tmp_path, tmp_path / "no")):
        assert recomputed_bits(["verify", "--recompute", place]) == (None, None)
    assert recomputed_bits(["verify", str(tmp_path)]) == (None, None)


def test_no_library_is_loaded_before_the_bits_are_chosen() -> None:
    """A process that starts itself anew would load all of them twice."""
    code = "import sys, privaudit.cli.start; print(*sorted(sys.modules))"
    done = in_no_bits(ROOT, "-c", code)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "numpy", "pydantic", "typer"} & set(done.stdout.split())


COMMAND = """
import atexit, ctypes, os, signal, sys, threading, time
from privaudit.cli.start import run_to_its_end
signal.signal(signal.SIGINT, signal.default_int_handler)

def command():
    print("begun", flush=True)
{body}

run_to_its_end(command)
"""


def started(body: str) -> "subprocess.Popen[str]":
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(body=lines)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_exit_codes_and_output_are_the_commands_own(code: int) -> None:
    command = started(f"print('to stderr', file=sys.stderr)\nsys.exit({code})")
    assert command.communicate() == ("begun\n", "to stderr\n")
    assert command.returncode == code


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        "os._exit(3)",
        "ctypes.CDLL(None)._exit(0)",
        "ctypes.CDLL(None).exit(0)",
        "os.execv('/bin/true', ['true'])",
        "threading.Thread(target=os._exit, args=[0]).start()\ntime.sleep(60)",
        "atexit.register(os._exit, 0)\nsys.exit(1)",
        "if not os.fork():\n    time.sleep(0.2)\nos._exit(0)",
    ],
)
def test_a_process_that_was_ended_by_others_fails(body: str) -> None:
    command = started(body)
    out, err = command.communicate()
    assert (command.returncode, out) == (2, "begun\n")
    assert "before the command had ended: other people's code ended it" in err


@pytest.mark.parametrize("fork", ["", "del os.fork"])
def test_a_fault_of_the_command_shows_its_traceback(fork: str) -> None:
    code = "import os; from privaudit.cli import main, start; main._run_here = lambda: 1 / 0"
    done = in_no_bits(ROOT, "-c", f"{code}\n{fork}\nstart.run()")
    assert done.returncode == FAULT == 70  # 1 is a finding
    assert done.stderr.startswith("Traceback")
    assert done.stderr.count("ZeroDivisionError") == 1
    assert "other people" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_that_ended_the_command_is_seen_outside(number: int) -> None:
    command = started(f"os.kill(os.getpid(), {int(number)})")
    assert command.communicate() == ("begun\n", "")
    assert command.returncode == -number


INTERRUPTED = """
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    try:
        time.sleep(0.3)
        print("cleaned up", flush=True)
    except KeyboardInterrupt:
        print("twice", flush=True)
sys.exit(130)
"""


@pytest.mark.parametrize("to_all", [True, False])
def test_ctrl_c_interrupts_once(to_all: bool) -> None:
    """A terminal signals both processes, and kill the first alone."""
    command = started(INTERRUPTED.strip())
    assert command.stdout is not None
    assert [command.stdout.readline() for _ in "12"] == ["begun\n", "ready\n"]
    (os.killpg if to_all else os.kill)(command.pid, signal.SIGINT)
    assert command.communicate(timeout=30)[0] == "cleaned up\n"
    assert command.returncode == 130


def test_the_command_ends_when_its_parent_was_killed(tmp_path: Path) -> None:
    command = started("time.sleep(60)")
    assert command.stdout is not None
    assert command.stdout.readline() == "begun\n"
    begun = time.monotonic()
    command.kill()
    command.communicate()  # until the child has let go of its end, too
    assert time.monotonic() - begun < 30


TOLD = """
import os, signal, sys, time

def told(_):  # while a file is written beside the one that it will replace
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)

os.fsync = told
sys.argv[0] = "privaudit"
from privaudit.cli.main import run
run()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--trainer", "zero-shot", "--rounds", "1", "--seed", "0"],
        ["attack", "whole", "--shadows", "0", "--on", "local:1"],
    ],
)
def test_a_command_that_is_told_to_end_leaves_no_unfinished_copy(
    words: list[str], whole: Path
) -> None:
    command = [sys.executable, "-c", TOLD, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=whole.parent)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stderr.count("Traceback") == 0
    assert not [*whole.parent.rglob("*.unfinished")]


@pytest.mark.parametrize("command", ["train", "gate"])
def test_a_reader_that_went_away_is_no_error_of_other_peoples_code(
    command: str,
) -> None:
    """As of ``| head -1``: rich then raises SystemExit, of a BrokenPipeError."""
    reads, writes = os.pipe()
    os.close(reads)
    words = [sys.executable, "-m", "privaudit", command, "--help"]
    done = subprocess.run(words, stdout=writes, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_exit_with_code_0_is_one_whatever_pipe_broke() -> None:
    @without_exits()
    def ends() -> None:
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            sys.exit(0)

    with pytest.raises(PluginError, match="ended the process"):
        ends()


MOST = 400  # modules of privaudit
TRAINERS = ("promptfl", "dp_promptfl")
HEAVY = {
    "torch", "torch._dynamo", "torch.distributed.tensor", "sympy", "opacus", "sklearn",
    "dp_accounting", "pandas", "scipy.stats", "scipy.optimize", "scipy.ndimage",
    "matplotlib", "matplotlib.pyplot", "transformers", "torchvision", "open_clip",
}  # fmt: skip
FOR_HELP = {"numpy", "open_clip", "scipy"}  # they take seconds to import
COMPOSING = "scipy.stats scipy.optimize scipy.ndimage"  # scipy.signal brings them
TRAIN = "train --seed 0 --rounds 1 --clients 2 --quiet --trainer"
START_UPS = (  # in one process: each command, and what it may import besides
    (
        (f"{TRAIN} promptfl:epochs=1", "torch"),
        ("attack {run} --shadows 0 --clients 2 --on local:1 --quiet", "matplotlib"),
        ("report {run}", ""),
    ),
    (
        ("--help", ""),
        ("gate {run} --max-auroc 0.99", "scipy.optimize"),
        ("export {run} --public card", "torch"),
        ("verify card/card.json {run}", ""),
        ("compare {run} {run}", ""),
    ),
    (("list", "torch"), (f"{TRAIN} dp-fpl:epsilon=8", COMPOSING)),
)
COUNT = """
import shlex, sys
from privaudit.cli.main import app
for words in sys.argv[1:]:
    app(shlex.split(words), standalone_mode=False)
    print("Modules:", *sys.modules)
"""


def test_commands_import_what_they_use(whole: Path) -> None:
    trainers = []
    for commands in START_UPS:
        words = [c.format(run=shlex.quote(str(whole))) for c, _ in commands]
        done = in_no_bits(whole.parent.parent, "-c", COUNT, *words)
        lines = [x for x in done.stdout.splitlines() if x.startswith("Modules: ")]
        assert len(lines) == len(commands), done.stderr
        allowed: set[str] = set()
        for (command, more), line in zip(commands, lines, strict=True):
            found, allowed = set(line.split()), allowed | set(more.split())
            ours = {n for n in found if n.partition(".")[0] == "privaudit"}
            trainers.append({n for n in ours if n.startswith("privaudit.trainers.")})
            assert found & HEAVY <= allowed, command
            assert command != "--help" or not found & FOR_HELP
            assert len(ours) <= MOST, command
    assert trainers[1] == {f"privaudit.trainers.{n}" for n in TRAINERS}  # of the attack
    assert (whole / "audits" / "server-reconstruct" / "report.html").exists()
