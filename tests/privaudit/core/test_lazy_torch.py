"""Without torch scores are audited, held and checked; with it nothing is otherwise."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit.core.lazy_torch import late, when_imported
from tests.places import ROOT

BLOCKED = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""
HEAVY = (
    "torch",
    "torchvision",
    "opacus",
    "transformers",
    "safetensors",
    "sklearn",
    "peft",
)
RUN = """
from privaudit.cli.main import _run_here, app
for words in sys.argv[2:]:
    assert not app(words.split(), standalone_mode=False)
sys.argv[1:] = sys.argv[1].split()
_run_here()
"""


def python(
    script: str, *arguments: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env={
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
            "PRIVAUDIT_KEYS": str(folder / "keys"),
        },
        capture_output=True,
        text=True,
    )


def without(
    *blocked: str, run: str, folder: Path, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process without these modules, and some before in the same."""
    script = BLOCKED.format(blocked=blocked) + RUN
    return python(script, run, *before, folder=folder)


def write_scores(path: Path, seed: int) -> None:
    draws = np.random.default_rng(seed)
    member = draws.integers(0, 2, 200)
    scores = draws.normal(size=200) + member
    rows = (
        f"{s},{m},r{n}" for n, (s, m) in enumerate(zip(scores, member, strict=True))
    )
    path.write_text("\n".join(["score,member,record", *rows]))


@pytest.mark.slow
def test_no_command_about_scores_imports_torch(tmp_path: Path) -> None:
    write_scores(tmp_path / "one.csv", 0)
    *before, last = (
        "scores one.csv --sampling coin",
        "report one",
        "gate one --scenario scores --max-auroc 0.99",
        "compare one one --scenario scores",
        "export one --public public",
        "verify public",
    )
    done = without(*HEAVY, run=last, folder=tmp_path, before=before)
    assert done.returncode == 0, done.stderr


def test_a_command_that_needs_more_says_what(tmp_path: Path) -> None:
    done = without(*HEAVY, run="train", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("privaudit: this needs torch, which is not installed")


def test_other_missing_modules_are_bugs_and_show_a_traceback(tmp_path: Path) -> None:
    done = without("pydantic_core", run="status", folder=tmp_path)
    assert "Traceback" in done.stderr


def test_stand_ins_give_way_to_torch_whoever_imports_it(tmp_path: Path) -> None:
    script = """
import sys
from privaudit.core import devices, lazy_torch, storage, tensors
assert "torch" not in sys.modules
assert not isinstance(3, devices.Tensor)
stood_in = devices.Tensor
calls = []
lazy_torch.when_imported(lambda: calls.append(1))
import torch
assert calls == [1]
for module in (devices, lazy_torch, tensors):
    assert module.torch is torch and module.Tensor is torch.Tensor
assert devices.CPU == devices.chosen_device() == torch.device("cpu")
assert storage.SAFETENSORS_TYPES[torch.int8] == "I8"
assert isinstance(torch.ones(1), stood_in)
assert lazy_torch.nn is torch.nn and lazy_torch.functional is torch.nn.functional
"""
    done = python(script, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_who_only_asks_for_torch_or_fails_to_import_it_changes_nothing(
    tmp_path: Path,
) -> None:
    """transformers looks for torch before it imports it; here the first import fails."""
    (tmp_path / "torch" / "nn").mkdir(parents=True)
    (tmp_path / "torch" / "nn" / "__init__.py").touch()
    (tmp_path / "torch" / "nn" / "functional.py").touch()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import builtins\nclass Tensor: pass\nbuiltins.fails"
    )
    script = """
import builtins, sys
from importlib.util import find_spec
from privaudit.core import lazy_torch

stood_in, calls = lazy_torch.torch, []
lazy_torch.when_imported(lambda: calls.append(1))
assert find_spec("torch") and "torch" not in sys.modules
try:
    import torch
except AttributeError:
    assert lazy_torch.torch is stood_in and not calls
builtins.fails = False
import torch
assert lazy_torch.torch is torch and calls == [1]
assert not any(isinstance(one, lazy_torch._Finder) for one in sys.meta_path)
"""
    done = python(script, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_stand_in_imports_torch_when_it_is_used(tmp_path: Path) -> None:
    script = """
from privaudit.core.lazy_torch import torch, late

@torch.no_grad()
def sums():
    return torch.ones(2).requires_grad_().sum().requires_grad

types = late(lambda: {torch.int8: 1})
assert types[torch.int8] == 1
assert sums() is False
assert torch.device("cpu").type == "cpu"
"""
    assert python(script, folder=tmp_path).returncode == 0


def test_portable_kernels_are_in_place_before_anything_computes(tmp_path: Path) -> None:
    script = """
import os
os.environ["PRIVAUDIT_BITS"] = "portable"
from privaudit.core import tensors
tensors.bits_here = lambda: "portable"
import torch, numpy as np
x = torch.linspace(0.1, 9, 1000)
assert (x.log().numpy() == np.log(x.numpy())).all()
assert tensors.replace_kernels.cache_info().currsize == 1
"""
    done = python(script, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_with_torch_a_value_is_made_at_once() -> None:
    called: list[int] = []
    when_imported(lambda: called.append(1))
    assert called == [1]
    assert late(lambda: torch.int8) is torch.int8


KEPT = """
import gc, sys, types
import privaudit.cli.commands.attack, privaudit.cli.commands.gate
import privaudit.datasets.records
assert "torch" not in sys.modules
import torch
from privaudit.core.lazy_torch import _stand_ins

for one in gc.get_objects():
    if isinstance(one, types.FunctionType):
        given = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        if any(id(value) in _stand_ins for value in given):
            print(one.__qualname__)
"""


def test_no_default_keeps_what_stood_in(tmp_path: Path) -> None:
    """A module's globals are exchanged, what a function's definition took is not."""
    done = python(KEPT, folder=tmp_path)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
