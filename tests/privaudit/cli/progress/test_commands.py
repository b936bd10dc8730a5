"""``--quiet``, ``--json`` and Ctrl-C, as a user meets them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from privaudit import train
from privaudit.federated.runs.folder.run_names import load_run, runs_folder
from tests.conftest import Cli


def test_quiet_prints_paths_and_verdicts_alone(cli: Cli) -> None:
    asked = "train --trainer zero-shot --rounds 1 --clients 2 --name a --quiet"
    assert cli(*asked.split()) == (0, f"{runs_folder() / 'a'}\n", "")
    code, out, err = cli(*["attack", "--shadows", "0", "--quiet"])
    assert (code, err) == (0, "")
    assert out.startswith("a: ")
    assert "AUROC" in out
    assert out.count("\n") == 1


def test_json_holds_events_and_a_last_line_with_what_came_of_it(
    cli: Cli,
) -> None:
    asked = "train --trainer promptfl:epochs=1 --rounds 2 --clients 2 --name a --json"
    code, out, err = cli(*asked.split())
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in lines] == ["round", "round", "result"]
    assert lines[-1]["path"] == str(runs_folder() / "a")
    assert lines[-1]["utility"] == lines[-2]["utility"]
    again = json.loads(cli(*asked.split())[1])  # finished: measured again
    assert again == lines[-1]
    code, out, err = cli(*["attack", "--shadows", "0", "--json"])
    assert (code, err) == (0, "")
    result = json.loads(out.splitlines()[-1])
    assert result["event"] == "result"
    assert result["verdict"] in (
        "leaks",
        "reversed",
        "no evidence",
        "underpowered",
    )
    assert len(result["auroc"]["n"]) == 2
    assert Path(result["path"], "audit.json").exists()
    assert Path(result["report"]).exists()


def test_plain_lines_are_written_where_no_terminal_is(cli: Cli) -> None:
    asked = "train --trainer zero-shot --rounds 2 --clients 2 --name a"
    code, out, err = cli(*asked.split())
    assert (code, out) == (0, f"zero-shot: {runs_folder() / 'a'}\n")
    first, second = err.splitlines()
    assert first.startswith("a: round 1/2, loss ")
    assert second.endswith("epsilon 0 for server, server-aggregate, peer, released, "
                           "delta 1e-5")  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pty")
def test_ctrl_c_in_a_terminal_leaves_it_clean_and_the_run_resumable() -> None:
    ours, theirs = pty.openpty()
    words = (
        "train --trainer promptfl:epochs=1 --rounds 300 --clients 2 --seed 0 --name a"
    )
    with subprocess.Popen(
        [sys.executable, "-c", LIGHT, *words.split()],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        # A shell's background jobs ignore Ctrl-C, and hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        os.close(theirs)
        shown = read_until(ours, b"rounds")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        shown += read_until(ours, None)
    os.close(ours)
    assert process.returncode == 130
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")  # cursor is back
    assert shown.rstrip().endswith(b"add --resume to the same command to continue.")
    done = load_run("a").header["progress"]["rounds"]
    assert 0 < done < 300
    rounds: dict[str, Any] = {"seed": 0, "rounds": 300, "clients": 2, "epochs": 1}
    with pytest.raises(KeyboardInterrupt):
        # Near: a process of its own takes no more threads than there are cores.
        train("promptfl", name="a", resume="near", watcher=stop, **rounds)
    assert load_run("a").header["progress"]["rounds"] == done + 1


# Nor does a run on the embedded model wait for libraries that it does not call.
LIGHT = """
import sys
from privaudit.cli.main import run
try:
    run()
finally:
    assert not {"open_clip", "timm", "torchvision", "transformers"} & set(sys.modules)
"""


def stop(event: object) -> None:
    raise KeyboardInterrupt


def read_until(terminal: int, text: bytes | None) -> bytes:
    """Return what a terminal shows up to a text, or to its end."""
    shown = b""
    while text is None or text not in shown:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        shown += more
    return shown
