"""Portable bits: settings that hold, have an effect, and say so where they have not."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from privaudit.core import portable_bits
from privaudit.core.devices import use_device
from privaudit.core.errors import ConfigError, PrivauditWarning
from privaudit.core.portable_bits import (
    _ALSO_THREADS,
    _TAKE_BACK,
    NOT_STATED,
    Provenance,
    chosen_bits,
    computed_with,
    counted,
    portable_environment,
    settings,
    warn_unless_held,
)
from tests.places import ROOT
from tests.simulated_device import another_device

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
    known = portable_environment({})
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
    several = {**settings(), "OMP_NUM_THREADS": "2"}
    bits, differing = json.loads(started(DIFFERING, several).stdout)
    assert bits == "portable"
    assert "QR" in differing


@by_processor
@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", *_ALSO_THREADS, *_TAKE_BACK])
def test_what_would_take_a_setting_back_is_replaced(name: str) -> None:
    value = "0" if name.startswith("OMP") else "2" if name in _ALSO_THREADS else "AVX2"
    begun = "from privaudit.core.portable_bits import bits_here; print(bits_here())"
    assert started(begun, {**settings(), name: value}).stdout == "native\n"
    command = [sys.executable, "-c", DIFFERING]
    code = f"from privaudit.core.portable_bits import _main; _main({command})"
    assert json.loads(started(code, {name: value}).stdout) == ["portable", []]


def test_what_a_process_sets_itself_comes_too_late() -> None:
    code = (
        "import os, privaudit.core.portable_bits as bits\n"
        "os.environ.update(bits.portable_environment(os.environ))\n"
        "print(bits.bits_here())\n"
    )
    assert started(code).stdout == "native\n"


def test_no_process_is_started_anew_twice() -> None:
    mark = "import os; os.environ['PRIVAUDIT_STARTED'] = f'{os.getpid()} portable'\n"
    done = started(f"{mark}import privaudit; privaudit.use_portable_bits()")
    assert "was started anew for portable bits, and has others" in done.stderr


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
        for top in ["privaudit", "attacks", "trainers", "scenarios", "labs", "tools"]
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
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # activated
    assert started(call, path).stdout == "portable ['a b']\n"


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("import numpy", "numpy is loaded, and cannot be told any more"),
        ("import sys; sys.argv[0] = '-'", "there is no script that could be started"),
    ],
)
def test_where_libraries_cannot_be_told_it_says_why(first: str, why: str) -> None:
    code = (
        f"{first}\n"
        "from privaudit import use_portable_bits\n"
        "from privaudit.core.errors import ConfigError\n"
        "try: use_portable_bits()\n"
        "except ConfigError as error: print(error)\n"
    )
    said = started(code).stdout
    assert said.startswith(f"Portable bits were requested, and {why}")
    assert 'OPENBLAS_CORETYPE="Prescott"' in said
    assert 'OMP_NUM_THREADS="1"' in said


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
    with pytest.raises(ConfigError, match="There are no bits 'portible'"):
        warn_unless_held("portible")  # where a program calls a command


def test_on_another_device_bits_are_native_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portable_bits, "bits_here", lambda: "portable")
    with another_device() as device, use_device(device):
        assert computed_with()["bits"] == "native"
        with pytest.warns(PrivauditWarning, match=f"{device} computes"):
            warn_unless_held("portable")


HERE = {"bits": "portable", "builds": {"torch": "2.13.0", "numpy": "2.4.6"}}


def test_a_run_says_its_bits_builds_and_processor() -> None:
    found = Provenance.of({"computed": HERE, "processor": "Xeon"})
    assert str(found) == "portable bits of torch 2.13.0, numpy 2.4.6 on Xeon"


def test_a_run_that_went_on_elsewhere_says_both() -> None:
    before = {"computed": {"bits": "native", "builds": {}}, "processor": "EPYC"}
    found = Provenance.of({"computed": HERE, "processor": "Xeon", "earlier": [before]})
    assert found.processor == "EPYC, then Xeon"
    assert found.bits.startswith("native bits of , then portable bits of torch")


def test_operations_that_differ_are_named() -> None:
    found = Provenance.of({"computed": HERE | {"differing": ["exp", "sum"]}})
    assert found.bits.endswith("numpy 2.4.6, but for exp, sum")


def test_nothing_is_said_of_earlier_versions_and_of_trainings_elsewhere() -> None:
    for header in ({}, {"computed": HERE, "processor": "Xeon", "origin": "recorded"}):
        assert str(Provenance.of(header)) == NOT_STATED
    assert counted([]) == ""
