"""The command line starts itself anew where other bits are asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from privaudit.core.portable_bits import settings
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
