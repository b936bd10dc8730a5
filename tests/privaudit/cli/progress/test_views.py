"""Progress in every view, and ``--quiet``, ``--json`` and Ctrl-C as a user meets them."""

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from privaudit import Auditor, train
from privaudit.cli.progress import (
    CellDone,
    Display,
    Event,
    Phase,
    Result,
    RoundDone,
    choose_view,
    live,
)
from privaudit.cli.progress.live import LINES, PlainLines, RichView, duration, line_of
from privaudit.cli.progress.view import JsonLines, Silent
from privaudit.core.errors import ConfigError
from privaudit.core.storage import file_hash
from privaudit.runs.run import load_run, runs_folder
from privaudit.runs.run_files import PERSONAL
from privaudit.statistics.estimate import Estimate
from tests.conftest import Cli
from tests.places import ROOT


def estimate(value: float) -> Estimate:
    return Estimate(value, value - 0.03, value + 0.03, (100,), "")


def round_done(done: int = 3, total: int = 20, **changes: Any) -> RoundDone:
    fields: dict[str, Any] = {
        "run": "dp-fpl-digits",
        "done": done,
        "total": total,
        "loss": 0.7312,
        "utility": estimate(0.84),
        "utility_round": done,
        "bytes_up": 1_234_567,
        "bytes_down": 2_000,
        "epsilon": dict.fromkeys(("server", "server-aggregate"))
        | {"peer": 0.4, "released": 0.8},
        "delta": 1e-5,
        "epsilon_round": done,
        "randomness": "system",
    }  # fmt: skip
    return RoundDone(**(fields | changes))


def cell_done(done: int, utility: float, auroc: float) -> CellDone:
    numbers = estimate(utility), estimate(auroc)
    return CellDone("dp-fpl", 8.0, done, done, 9, "accuracy", *numbers, 3725.0)


def test_a_round_in_words() -> None:
    assert line_of(round_done()) == (
        "dp-fpl-digits: round 3/20, loss 0.731, utility 0.840 [0.810, 0.870], sent "
        "1.23 MB up, 2 kB down, epsilon none for server, server-aggregate; 0.4 for "
        "peer; 0.8 for released, delta 1e-5"
    )
    seeded = line_of(round_done(randomness="seed"))
    assert seeded.endswith("delta 1e-5 (repeatable, not private)")
    nothing = line_of(round_done(randomness="seed", epsilon={"peer": 0.0}))
    assert "repeatable" not in nothing


def test_numbers_of_earlier_rounds_say_so() -> None:
    late = line_of(round_done(utility_round=1, epsilon_round=2))
    assert "[0.810, 0.870] (round 1)" in late
    assert "0.8 for released (round 2), delta" in late
    bare = line_of(round_done(utility=None, utility_round=None, epsilon={"peer": None}))
    assert "utility not measured yet" in bare
    assert bare.endswith("epsilon none")


def test_a_cell_in_words() -> None:
    assert line_of(cell_done(2, 0.8, 0.55)) == (
        "2/9 dp-fpl, epsilon 8, seed 2: accuracy 0.800 [0.770, 0.830], AUROC 0.550 "
        "[0.520, 0.580], about 1 h 2 min left"
    )
    assert duration(61.0) == "1 min 1 s"


def test_plain_lines_hold_no_control_character_and_are_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainLines() as view:
        for done in range(1, 1001):
            view(round_done(done, 1000))
        for name in range(40):
            view(Phase("a", "attack", f"attack-{name}", name, 40))
    out, err = capsys.readouterr()
    assert out == ""
    assert all(char.isprintable() or char == "\n" for char in err)
    assert len(err.splitlines()) <= 2 * (LINES + 1)
    assert "round 1000/1000" in err


def test_plain_lines_write_each_of_a_few_rounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = PlainLines()
    for done in range(1, 6):
        view(round_done(done, 5))
    assert len(capsys.readouterr().err.splitlines()) == 5


def test_plain_lines_of_a_sweep_leave_out_what_goes_on_in_a_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = PlainLines()
    for done in (1, 2):
        view(Phase("tradeoff", "cell", "dp-fpl", done - 1, 9))
        view(round_done(1, 20))
        view(Phase("a", "attack", "lira", 0, 3))
        view(cell_done(done, 0.8, 0.5))
    lines = capsys.readouterr().err.splitlines()
    assert [line[:3] for line in lines] == ["1/9", "2/9"]


def test_json_lines_are_objects_with_the_documented_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    phase = Phase("a", "shadows", "client-0", 0, 50, "round 1 of 3")
    with JsonLines() as view:
        for event in (round_done(), phase, cell_done(1, 0.8, 0.5)):
            view(event)
        view.present([Result("short", {"path": "runs/a"})], lambda: print("long"))
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in lines] == ["round", "phase", "cell", "result"]
    assert lines[0]["utility"]["n"] == [100]
    assert set(lines[2]["auroc"]) >= {"value", "low", "high", "n"}
    assert lines[3] == {"event": "result", "path": "runs/a"}
    page = ROOT / "docs" / "live.md"
    for line in lines[:3]:
        for key in line:
            assert f"`{key}`" in page.read_text(), key
    assert err == ""


def test_silence_shows_the_essentials_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Silent() as view:
        view(round_done())
        view.present([Result("one"), Result("two")], lambda: print("long"))
    assert capsys.readouterr() == ("one\ntwo\n", "")


def drawn(*events: Event) -> str:
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    view = RichView(console)
    for event in events:
        view(event)
    console.print(view.picture())
    return console.export_text()


def test_the_picture_of_a_training() -> None:
    text = drawn(round_done(3), round_done(7))
    assert "7/20" in text
    assert "1.23 MB up, 2 kB down" in text
    assert "0.840 [0.810, 0.870]" in text
    assert "0.8 for released, delta 1e-5" in text


def test_the_picture_of_a_sweep_names_the_runs_that_stand_out() -> None:
    text = drawn(
        Phase("tradeoff", "cell", "dp-fpl, epsilon 8, seed 1", 0, 9),
        cell_done(1, 0.9, 0.6),
        cell_done(2, 0.7, 0.5),
        Phase("tradeoff", "cell", "dp-fpl, epsilon 8, seed 3", 2, 9),
        round_done(4, 100),
    )
    assert "2/9" in text
    assert "4/100" in text
    assert "about 1 h 2 min" in text
    useful = next(line for line in text.splitlines() if "most useful" in line)
    assert "seed 1" in useful
    least = next(line for line in text.splitlines() if "leaks least" in line)
    assert "seed 2" in least
    assert "picked from 2: no result yet" in text


def test_the_picture_of_an_attack() -> None:
    shadows = Phase("a", "shadows", "client-0", 6, 50, "round 3 of 20")
    text = drawn(Phase("a", "attack", "lira", 1, 7), shadows)
    assert "6/50" in text
    assert "round 3 of 20" in text


def interrupted(view: Display) -> None:
    with view:
        view(round_done())
        raise KeyboardInterrupt


def test_the_picture_is_gone_when_the_work_ends_by_an_error() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    view = RichView(console)
    with pytest.raises(KeyboardInterrupt):
        interrupted(view)
    written = stream.getvalue()
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # cursor is back
    assert written.rstrip().endswith("\x1b[2K")  # and the last line is erased


def test_the_view_follows_the_options_and_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(choose_view(quiet=True), Silent)
    assert isinstance(choose_view(in_json=True), JsonLines)
    monkeypatch.setenv("FORCE_COLOR", "1")  # no terminal, for all that
    assert isinstance(choose_view(), PlainLines)
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(choose_view(), RichView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_view(), PlainLines)
    with pytest.raises(ConfigError, match="--quiet and --json were both given"):
        choose_view(quiet=True, in_json=True)


VIEWS: dict[str, Callable[[], Display]] = {
    "silent": Silent,
    "plain": PlainLines,
    "json": JsonLines,
    "rich": lambda: RichView(Console(file=io.StringIO(), force_terminal=True)),
}


def test_no_view_changes_what_is_trained_or_found() -> None:
    """Of a private trainer, whose accountant is asked while it trains."""
    asked: dict[str, Any] = {"rounds": 2, "clients": 2, "epsilon": 8.0, "seed": 0}
    plain = train("dp-fpl", name="unwatched", **asked)
    scores = audit_scores(plain.name)
    for name, build in VIEWS.items():
        with build() as view:
            run = train("dp-fpl", name=name, watcher=view, **asked)
            assert audit_scores(run.name, view) == scores
        assert run.header["progress"]["head"] == plain.header["progress"]["head"]
        assert run.privacy == plain.privacy
        for file in (PERSONAL, "privacy.json"):
            assert file_hash(run.path / file) == file_hash(plain.path / file)


def audit_scores(run: str, watcher: Display | None = None) -> list[list[float]]:
    audit = Auditor(run).attack(shadows=0, watcher=watcher)
    return [c.scores.tolist() for leak in audit.results.values() for c in leak.clients]


def test_the_last_round_tells_what_the_run_records() -> None:
    events: list[Event] = []
    run = train(
        "dp-fpl",
        rounds=3,
        clients=3,
        epsilon=8.0,
        watcher=events.append,
        seed=0,
        randomness="system",
    )
    rounds = [event for event in events if isinstance(event, RoundDone)]
    assert [event.done for event in rounds] == [1, 2, 3]
    last = rounds[-1]
    certified = run.privacy["certified"].items()
    assert last.epsilon == {view: one["epsilon"] for view, one in certified}
    assert last.epsilon_round == 3
    assert last.bytes_up == sum(line["bytes_up"] for line in run.metrics)
    assert last.utility is not None
    assert last.utility.value == run.metrics[-1]["local_accuracy"]


def test_a_resumed_run_goes_on_counting(cut: Path) -> None:
    events: list[Event] = []
    run = train(
        name=cut.name, rounds=3, epochs=1, resume=True, watcher=events.append, seed=0
    )
    (event,) = events
    assert isinstance(event, RoundDone)
    assert (event.done, event.total) == (3, 3)
    assert event.bytes_up == sum(line["bytes_up"] for line in run.metrics)


def test_an_attack_tells_its_phases() -> None:
    events: list[Event] = []
    run = train("promptfl", rounds=2, epochs=1, clients=3, seed=0)
    watched = Auditor(run).attack(clients=1, shadows=5, watcher=events.append)
    shutil.rmtree(run.path / "audits" / "signals")  # with what was kept of the shadows
    alone = Auditor(run).attack(clients=1, shadows=5)
    assert watched.to_dict()["attack_results"] == alone.to_dict()["attack_results"]
    phases = [event for event in events if isinstance(event, Phase)]
    assert {event.run for event in phases} == {run.name}
    assert phases[0].phase == "reconstruct"
    assert phases[0].what == "3 clients"
    names = [event.what for event in phases if event.phase == "attack"]
    assert names[:2] == ["rmia", "loss-threshold"]
    assert names[-1] == "loss-threshold as server-aggregate"
    shadows = [event for event in phases if event.phase == "shadows"]
    assert {(event.what, event.total) for event in shadows} == {("client-0", 5)}


def test_long_work_says_how_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 4.0, 30.0, 100.0])
    monkeypatch.setattr(live, "monotonic", lambda: next(clock))
    view = PlainLines()
    for done in (0, 1, 3, 10):
        view(Phase("run", "shadows", done=done, total=10, what="client-0"))
    first, second, third, last = capsys.readouterr().err.splitlines()
    assert third.endswith("shadow models 3/10 of client-0, about 1 min 10 s left")
    assert not any("left" in line for line in (first, second, last))


def test_quiet_prints_paths_and_verdicts_alone(cli: Cli) -> None:
    asked = "train --trainer zero-shot --rounds 1 --clients 2 --name a --quiet"
    assert cli(*asked.split()) == (0, f"{runs_folder() / 'a'}\n", "")
    code, out, err = cli(*["attack", "--shadows", "0", "--quiet"])
    assert (code, err) == (0, "")
    assert out.startswith("a: ")
    assert "AUROC" in out
    assert out.count("\n") == 1


def test_json_holds_events_and_a_last_line_with_what_came_of_it(cli: Cli) -> None:
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
    assert result["verdict"] in ("leaks", "reversed", "no evidence", "underpowered")
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
