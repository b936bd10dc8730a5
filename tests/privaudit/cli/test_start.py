"""The command line starts itself anew where other bits are asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from privaudit.cli.start import recomputed_bits
from privaudit.core.portable_bits import chosen_bits, settings
from tests.places import ROOT


def command(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    known = {*settings(), "PRIVAUDIT_BITS"}
    others = {name: value for name, value in os.environ.items() if name not in known}
    return subprocess.run(
        [sys.executable, "-m", "privaudit", *argv],
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
    assert recomputed_bits(["verify", "--recompute", str(tmp_path)]) == (None, None)
    assert recomputed_bits(["verify", "--recompute", str(tmp_path / "no")]) == (
        None,
        None,
    )
    assert recomputed_bits(["verify", str(tmp_path)]) == (None, None)


def test_no_library_is_loaded_before_the_bits_are_chosen() -> None:
    """A process that starts itself anew would load all of them twice."""
    code = "import sys, privaudit.cli.start; print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert not {"torch", "numpy", "pydantic", "typer"} & set(done.stdout.split())
