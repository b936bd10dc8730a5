"""Emulated processors: make test-elsewhere. Their bytes are this machine's in portable
bits, and in their own bits everything works.

A process that an emulated one starts is not emulated: qemu hands it to the kernel. So
settings stand before the emulator starts, and the chosen tests start nothing.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from privaudit.core.portable_bits import settings
from privaudit.core.storage import file_hash
from tests.places import ROOT
from tests.privaudit.core.test_portable_bits import DIFFERING, started

# With SSE4.2, with AVX2, and of another maker, for which MKL takes other paths.
PROCESSORS = ("Nehalem", "Haswell", "EPYC")
CHOSEN = ROOT / "tests" / "emulated.txt"
PORTABLE = {**settings(), "PRIVAUDIT_BITS": "portable"}
NATIVE = {"PRIVAUDIT_BITS": "native"}
emulated = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None or not os.environ.get("TEST_EMULATED"),
    reason="takes qemu-user, a package of Debian, and minutes: make test-elsewhere",
)
on_each = pytest.mark.parametrize("processor", PROCESSORS)


def test_the_chosen_tests_are_there() -> None:
    """A file that was renamed would be noticed by the emulator alone, once a week."""
    chosen = [line.partition("::") for line in CHOSEN.read_text().splitlines()]
    assert len({name for name, _, _ in chosen}) > 15
    for name, _, test in chosen:
        assert f"def {test.partition('[')[0]}" in (ROOT / name).read_text()


@emulated
@pytest.mark.slow
@on_each
def test_an_emulated_processor_computes_the_same_bits(processor: str) -> None:
    code = f"{DIFFERING}print(open('/proc/self/comm').read())"
    done = started(code, settings(), ["qemu-x86_64", "-cpu", processor])
    bits, name = done.stdout.split("\n")[:2]
    assert json.loads(bits) == ["portable", []]
    assert name == "qemu-x86_64"  # it was emulated


@emulated
@pytest.mark.slow
@on_each
def test_a_hundred_tests_pass(processor: str) -> None:
    """Without checks of types, which would be most of what is emulated."""
    words = [
        "-opython_files=test_*.py", "-oaddopts=-pno:privaudit --import-mode=importlib",
        "-pno:xdist", "-pno:cacheprovider", "-q", "--strict-markers", f"@{CHOSEN}",
    ]  # fmt: skip
    code = f"import os, sys, pytest; os.chdir({str(ROOT)!r}); sys.exit(pytest.main({words}))"
    asked = {**PORTABLE, "TEST_EMULATED": "", "TEST_TARGET": ""}
    done = started(code, asked, ["qemu-x86_64", "-cpu", processor])
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 100


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A run and its attack on this machine, in portable bits."""
    return hashes(attacked(tmp_path_factory.mktemp("here"), PORTABLE))


@emulated
@pytest.mark.slow
@on_each
def test_an_emulated_processor_gives_the_same_transcript_audit_and_report(
    processor: str, here: dict[str, str], tmp_path: Path
) -> None:
    assert {"audit.json", "scores.npz", "report.html", "manifest.jsonl"} <= {
        Path(name).name for name in here
    }
    emulator = ["qemu-x86_64", "-cpu", processor]
    assert hashes(attacked(tmp_path, PORTABLE, emulator)) == here


@emulated
@pytest.mark.slow
@on_each
def test_in_its_own_bits_an_emulated_processor_comes_to_a_verdict(
    processor: str, tmp_path: Path
) -> None:
    run = attacked(tmp_path, NATIVE, ["qemu-x86_64", "-cpu", processor])
    assert json.loads((run / "run.json").read_text())["computed"]["bits"] == "native"
    (audit,) = run.rglob("audit.json")
    assert '"verdict"' in audit.read_text()


def attacked(
    folder: Path, bits: Mapping[str, str], emulator: Sequence[str] = ()
) -> Path:
    """Train and attack in a folder, and return the run's."""
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
        done = started(code, {**bits, **places}, emulator)
        assert done.returncode == 0, done.stderr
    return folder / "a"


def hashes(run: Path) -> dict[str, str]:
    """Return the hash of each file but those that hold times."""
    timed = re.compile(r"run\.json|.*\.lease.*|.*lock|log\.jsonl|metrics\.jsonl")
    return {
        path.relative_to(run).as_posix(): file_hash(path)
        for path in sorted(run.rglob("*"))
        if path.is_file() and not timed.fullmatch(path.name)
    }
