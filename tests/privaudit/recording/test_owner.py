"""The owner's module: how it is found, checked, and blamed."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit import Auditor, load_run
from privaudit.core.errors import AttackError, PrivauditError
from privaudit.execution.jobs import computing_as, computing_here
from privaudit.recording.owner import Owner, chosen_owner, load_owner, use_owner
from tests.conftest import Cli
from tests.places import ROOT
from tests.privaudit.recording.small_federation import Linear, linear

CODE = """
from small import answer
labels = [0, 1, 2]
class_names = contents = base = utility = None
def query(tensors, positions):
    return answer
"""


def test_a_file_is_imported_with_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # torch.classes says that it is a file in this folder
    (tmp_path / "small.py").write_text("answer = 41")
    (tmp_path / "owner_of_three.py").write_text(CODE)
    owner = load_owner(str(tmp_path / "owner_of_three.py"))
    assert owner.query({}, np.array([0])) == 41
    assert owner.labels is not None
    assert owner.labels.tolist() == [0, 1, 2]


def test_what_is_kept_goes_when_the_code_changes(tmp_path: Path) -> None:
    """Also code that the owner's module imports from its own folder."""
    codes = []
    for answer in (1, 2):
        (tmp_path / "smaller.py").write_text(f"answer = {answer}")
        (tmp_path / "owner_of_three.py").write_text(CODE.replace("small", "smaller"))
        sys.modules.pop("smaller", None)
        codes.append(load_owner(str(tmp_path / "owner_of_three.py")).code)
    assert codes[0] != codes[1]
    assert not Owner.of(Linear()).code  # nothing is kept of what may change unseen


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "no function query"),
        ({"query": 3}, "query of .* is no function"),
        ({"query": len, "labels": [0], "base": {"w": 3}}, "base of .* is no model"),
        ({"query": len}, "should have labels"),
        ({"query": len, "labels": [0.5]}, "whole numbers"),
        ({"query": len, "labels": [[0]]}, "whole numbers"),
        ({"query": len, "labels": [0, -1]}, "labels from -1 to 0.* from 0 on"),
        ({"query": len, "labels": [3, 10**9]}, "to 1000000000, of 2 records"),
        ({"query": len, "labels": np.array([2**63 + 1])}, "to 9223372036854775809, of"),
        ({"query": len, "labels": [0], "task": "regression"}, "regression"),
        ({"query": len, "labels": [0], "utility": 1}, "utility of"),
        ({"query": len, "labels": [0, 1], "contents": ["a", "b"]}, "contents .* encod"),
        ({"query": len, "labels": [0, 1], "contents": np.array([1, 3])}, "not bytes"),
        ({"query": len, "labels": [0], "class_names": "cat"}, "class_names .* 'cat'"),
    ],
)
def test_what_an_owner_lacks_is_said(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PrivauditError, match=says):
        Owner.of(SimpleNamespace(**given))


@pytest.mark.parametrize(
    ("content", "says"),
    [("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError"), ("", "no function")],
)
def test_a_module_that_cannot_be_used_exits_with_2(
    folder: Path, tmp_path: Path, cli: Cli, content: str, says: str
) -> None:
    (tmp_path / "broken.py").write_text(content)
    code, _, err = cli("attack", folder, "--owner", tmp_path / "broken.py")
    assert code == 2
    assert says in err


ENDINGS = {
    "sys.exit()": "import sys\nsys.exit()",
    "a script": (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', required=True)\nparser.parse_args()"
    ),
    "what it imports": "import ends_at_once",
}


@pytest.mark.parametrize("command", ["attack", "gate", "lint"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_module_that_ends_the_process_is_no_success(
    folder: Path, tmp_path: Path, cli: Cli, ending: str, command: str
) -> None:
    """A gate takes exit code 0 for a pass."""
    (tmp_path / "ends_at_once.py").write_text("raise SystemExit(0)")
    (tmp_path / "theirs.py").write_text(ENDINGS[ending])
    code, out, err = cli(command, folder, "--owner", tmp_path / "theirs.py")
    assert (code, out) == (2, "")
    name = "ends_at_once" if "imports" in ending else "theirs"
    assert f"{name}.py ended the process (sys.exit) in line " in err
    assert "while it was imported. Put what a script does under `if __name__" in err


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("query", ["attack", "--shadows", "0"]),
        ("local_update", ["attack", "--shadows", "5"]),
        ("query", ["gate", "--min-utility", "0.1"]),
    ],
)
def test_a_function_that_ends_the_process_is_no_success(
    folder: Path, tmp_path: Path, cli: Cli, function: str, words: list[str]
) -> None:
    run = shutil.copytree(folder, tmp_path / "run")
    sound = "tests.privaudit.recording.linear_owner"
    if words[0] == "gate":  # asks an audit that is there, and models for utility
        assert cli("attack", run, "--shadows", "0", "--owner", sound)[0] == 0
    (tmp_path / "theirs.py").write_text(
        f"import sys\nfrom {sound} import *\ndef {function}(*_):\n    sys.exit()\n"
    )
    code, out, err = cli(*words, run, "--owner", tmp_path / "theirs.py")
    assert (code, out) == (2, "")
    assert (
        "theirs.py ended the process (sys.exit) in line 4, while it was called" in err
    )


@pytest.mark.slow
def test_no_command_is_ended_by_an_owners_module_in_silence(
    folder: Path, tmp_path: Path
) -> None:
    """Real processes: nobody can catch os._exit."""
    (tmp_path / "import.py").write_text("import os\nos._exit(0)")
    (tmp_path / "call.py").write_text(
        "import os\nfrom tests.privaudit.recording.linear_owner import *\n"
        "def query(*_):\n    os._exit(0)\n"
    )
    commands = [
        ["attack", str(folder), "--shadows", "0", "--owner", str(tmp_path / "call.py")],
        ["gate", str(folder), "--owner", str(tmp_path / "import.py")],
        ["lint", str(folder), "--owner", str(tmp_path / "import.py")],
    ]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "privaudit", *words],
            stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for words in commands
    ]  # fmt: skip
    for process in started:
        _, err = process.communicate()
        assert process.returncode == 2
        assert "other people's code ended it, as os._exit does" in err


def test_the_environment_or_who_hands_out_a_job_names_an_owner(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "tests.privaudit.recording.linear_owner"
    with use_owner(place):
        handed = computing_here()
    with computing_as(handed):
        assert chosen_owner() == load_owner(place)
    monkeypatch.setenv("PRIVAUDIT_OWNER", place)
    audit = Auditor(load_run(folder)).attack("prompt-release", shadows=0)
    assert audit.auroc.value > 0.95


def test_a_module_that_is_not_there_exits_with_2(folder: Path, cli: Cli) -> None:
    for name in ("nowhere.py", "no_such_module_at_all"):
        code, _, err = cli("attack", folder, "--owner", name)
        assert code == 2
        assert name in err


def test_an_owner_in_a_recorded_folder_is_not_executed(
    folder: Path, tmp_path: Path
) -> None:
    """It came with the folder, and may be anybody's."""
    copy = Path(shutil.copytree(folder, tmp_path / "run"))
    (copy / "theirs.py").write_text("raise SystemExit('executed')")
    with pytest.raises(PrivauditError, match="nothing of a run is executed"):
        load_owner(str(copy / "theirs.py"))


def test_what_lies_beside_an_owner_hides_no_installed_module(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("raise SystemExit('hidden')")
    (tmp_path / "owner_with_colours.py").write_text(
        "import colorsys\nlabels = [0]\nquery = colorsys.rgb_to_hsv"
    )
    sys.modules.pop("colorsys", None)
    assert load_owner(str(tmp_path / "owner_with_colours.py")).labels is not None


def raising(*_: object) -> None:
    raise ValueError("their own fault")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (raising, "query of .* raised ValueError: their own fault"),
        (lambda t, p: torch.zeros(3), "shape"),
        (lambda t, p: torch.zeros(len(p) - 1, 4), "shape"),
        (lambda t, p: torch.zeros(len(p), 1), "two classes"),
        (lambda t, p: torch.full((len(p), 4), torch.nan), "not finite"),
        (lambda t, p: torch.full((len(p), 4), 0.25), "probabilities"),
        (lambda t, p: torch.zeros(len(p), 3), "labels go to 3"),
    ],
)
def test_a_query_that_answers_wrongly_is_named(
    folder: Path, query: Any, says: str
) -> None:
    with use_owner(linear(query=query)), pytest.raises(AttackError, match=says):
        Auditor(load_run(folder)).attack(shadows=0)


@pytest.mark.parametrize("update", [raising, lambda r, p, s: 3, lambda r, p, s: {}])
def test_a_local_update_that_sends_nothing_is_named(folder: Path, update: Any) -> None:
    owner = linear(local_update=update)
    with use_owner(owner), pytest.raises(AttackError, match="local_update of"):
        Auditor(load_run(folder)).attack("update-watch")
