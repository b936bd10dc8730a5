"""Portable bits: settings that hold, have an effect, and say so where they have not."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from privaudit.core.errors import ConfigError
from privaudit.core.portable_bits import OPERATIONS, chosen_bits, settings
from privaudit.core.storage import file_hash
from tests.places import ROOT

DIFFERING = (
    "import json\n"
    "from privaudit.core.portable_bits import bits_here, differing_operations\n"
    "print(json.dumps([bits_here(), differing_operations()]))\n"
)
CPUINFO = Path("/proc/cpuinfo")
by_processor = pytest.mark.skipif(
    platform.machine() != "x86_64"
    or " avx2" not in CPUINFO.read_text(errors="replace"),
    reason="takes an x86-64 processor with AVX2, whose own kernels round differently",
)


def started(
    code: str, environment: Mapping[str, str] = {}, emulator: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python with an environment of its own, without settings of this process."""
    known = {*settings(), "PRIVAUDIT_BITS"}
    others = {name: value for name, value in os.environ.items() if name not in known}
    return subprocess.run(
        [*emulator, sys.executable, "-c", code],
        env={**others, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@by_processor
def test_with_the_settings_all_operations_have_the_portable_bits() -> None:
    assert json.loads(started(DIFFERING, settings()).stdout) == ["portable", []]


@by_processor
@pytest.mark.parametrize("left_out", settings())
def test_each_setting_has_an_effect(left_out: str) -> None:
    """A library that renames its variable is noticed here."""
    without = {name: value for name, value in settings().items() if name != left_out}
    bits, differing = json.loads(started(DIFFERING, without).stdout)
    assert bits == "native"
    assert differing


@by_processor
def test_several_threads_are_said_to_differ() -> None:
    done = started(DIFFERING, {**settings(), "OMP_NUM_THREADS": "2"})
    assert set(json.loads(done.stdout)[1]) <= set(OPERATIONS)


emulated = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None or not os.environ.get("TEST_EMULATED"),
    reason="takes qemu-user, a package of Debian, and minutes: make test-elsewhere",
)


@emulated
@pytest.mark.slow
@pytest.mark.parametrize("processor", ["Nehalem", "Haswell", "EPYC"])
def test_an_emulated_processor_computes_the_same_bits(processor: str) -> None:
    done = started(DIFFERING, settings(), ["qemu-x86_64", "-cpu", processor])
    assert json.loads(done.stdout) == ["portable", []]


@emulated
@pytest.mark.slow
def test_emulated_processors_give_the_same_transcript_audit_and_report(
    tmp_path: Path,
) -> None:
    here = attacked(tmp_path / "here", [])
    assert {"audit.json", "scores.npz", "report.html", "manifest.jsonl"} <= {
        Path(name).name for name in here
    }
    for processor in ("Nehalem", "Haswell", "EPYC"):
        there = attacked(tmp_path / processor, ["qemu-x86_64", "-cpu", processor])
        assert here == there, processor


def attacked(folder: Path, emulator: Sequence[str]) -> dict[str, str]:
    """Train and attack, and return the hash of each file but those that hold times."""
    folder.mkdir()
    quick = ["--seed", "0", "--rounds", "1", "--clients", "2", "--quiet"]
    for words in (
        ["train", "--trainer", "promptfl:epochs=1", "--name", "a", *quick],
        ["attack", "a", "--shadows", "5", "--clients", "1", "--quiet"],
    ):
        code = (
            f"import sys; sys.argv[1:] = {words!r}\n"
            "from privaudit.cli.main import run; run()"
        )
        places = {
            "PRIVAUDIT_RUNS": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        done = started(code, {**settings(), **places}, emulator)
        assert done.returncode == 0, done.stderr
    timed = re.compile(r"run\.json|.*\.lease.*|.*lock|log\.jsonl|metrics\.jsonl")
    return {
        path.relative_to(folder / "a").as_posix(): file_hash(path)
        for path in sorted((folder / "a").rglob("*"))
        if path.is_file() and not timed.fullmatch(path.name)
    }


def test_the_square_root_is_exact_in_portable_bits() -> None:
    """MKL's is off by a unit in the last place for one number in seven."""
    code = (
        "import numpy as np, torch, privaudit.core.tensors\n"
        "x = torch.arange(1, 100_000, dtype=torch.float32)\n"
        "into = torch.empty(0)\n"
        "torch.sqrt(x, out=into)\n"
        "same = [np.array_equal(one.numpy(), np.sqrt(x.numpy()))\n"
        "        for one in (x.sqrt(), x.clone().sqrt_(), into)]\n"
        "half = x.half().sqrt().dtype, torch.tensor([4, 9]).sqrt().tolist()\n"
        "slope = torch.ones(3, requires_grad=True)\n"
        "slope.sqrt().sum().backward()\n"
        "print(same, half, slope.grad.tolist())\n"
    )
    done = started(code, settings())
    assert done.stdout.startswith("[True, True, True] (torch.float16, [2.0, 3.0])")
    assert done.stdout.endswith("[0.5, 0.5, 0.5]\n")


def test_no_code_uses_what_no_setting_makes_portable() -> None:
    """MKL's least squares and Cholesky follow the processor in any settings."""
    found = {
        str(path)
        for top in ("privaudit", "attacks", "trainers", "scenarios")
        for path in (ROOT / top).rglob("*.py")
        if re.search(
            r"torch\.linalg\.(lstsq|cholesky)|torch\.cholesky", path.read_text()
        )
    }
    assert found == set()


def test_a_script_is_started_anew_by_its_first_line(tmp_path: Path) -> None:
    script = tmp_path / "theirs.py"
    script.write_text(
        "import sys\n"
        "from privaudit import use_portable_bits\n"
        "use_portable_bits()\n"
        "from privaudit.core.portable_bits import bits_here\n"
        "print(bits_here(), sys.argv[1:])\n"
    )
    call = (
        f"import os, sys; os.execv(sys.executable, ['python', {str(script)!r}, 'a b'])"
    )
    assert started(call).stdout == "portable ['a b']\n"


def test_loaded_libraries_cannot_be_told_any_more() -> None:
    code = (
        "import numpy\n"
        "from privaudit import use_portable_bits\n"
        "from privaudit.core.errors import ConfigError\n"
        "try: use_portable_bits()\n"
        "except ConfigError as error: print(error)\n"
    )
    said = started(code).stdout
    assert said.startswith("Portable bits were requested, and numpy is loaded")
    assert 'OPENBLAS_CORETYPE="Prescott"' in said


@pytest.mark.parametrize(
    ("argv", "bits"),
    [
        ([], None),
        (["train", "--bits", "native"], "native"),
        (["train", "--bits=portable", "--seed", "0"], "portable"),
        (["report", "--", "--bits=portable"], None),
    ],
)
def test_the_command_line_chooses(
    argv: list[str], bits: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVAUDIT_BITS", raising=False)
    assert chosen_bits(argv) == bits


def test_other_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIVAUDIT_BITS", raising=False)
    with pytest.raises(ConfigError, match="There are no bits 'portible'"):
        chosen_bits(["train", "--bits", "portible"])
