"""In a clone, ``trainers.dp_fpl`` and ``privaudit.trainers.dp_fpl`` are one module.

Every script runs as a user's would: in a process of its own, in the clone or elsewhere.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

BARE = """
import attacks.output_attacks
import scenarios.server_reconstruct
from trainers.dp_fpl import DPFPL
from trainers import promptfl
"""
FULL = """
import privaudit.attacks.output_attacks
import privaudit.scenarios.server_reconstruct
import privaudit.trainers.dp_fpl
import privaudit.trainers.promptfl
"""
LOOK_UP = """
from privaudit.auditing.attack import ATTACKS
from privaudit.federated.trainer import TRAINERS
ATTACKS.names(), TRAINERS.names()
"""
ARE_ONE = """
import sys
from importlib.util import find_spec

for name in ("attacks.output_attacks", "scenarios.server_reconstruct", "trainers.dp_fpl"):
    module = sys.modules[name]
    assert module is sys.modules[f"privaudit.{name}"], name
    assert module.__name__ == module.__spec__.name == f"privaudit.{name}"
assert sys.modules["trainers"] is privaudit.trainers
assert promptfl is privaudit.trainers.promptfl
assert find_spec("trainers.nothing") is None
"""
USES = """
from privaudit import Auditor, train
from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.federated.trainer import TRAINERS

run = train("dp-fpl", rounds=1, clients=2, folder=sys.argv[1])
assert type(run.trainer) is DPFPL is TRAINERS.find("dp-fpl")
assert DPFPL.__module__ == "privaudit.trainers.dp_fpl"  # by which other processes find it
assert ATTACKS.find("loss-threshold") is attacks.output_attacks.LossThreshold
audit = Auditor(run).attack(attacks={"mine": attacks.output_attacks.LossThreshold()}, shadows=0)
assert "mine" in audit.results
assert scenarios.server_reconstruct.__doc__ and SCENARIOS.find("server-reconstruct")
assert {name for name in TRAINERS.names() if "fpl" in name} == {"dp-fpl"}
"""


def run(script: str, folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder, which Python looks into before other paths."""
    path = os.pathsep.join(map(str, [folder, *paths]))
    return subprocess.run(
        [sys.executable, "-c", script, str(folder / "runs")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "script",
    [BARE + FULL + ARE_ONE + USES, FULL + LOOK_UP + BARE + ARE_ONE],
    ids=["bare names first", "bare names last"],
)
def test_a_method_is_one_module_under_both_names(script: str, tmp_path: Path) -> None:
    for name in ("privaudit", "attacks", "scenarios", "trainers"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = run(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_users_own_trainers_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").write_text("NAME = 'mine'")
    (tmp_path / "trainers" / "promptfl.py").write_text("WHOSE = 'mine'")
    script = (
        "import sys, privaudit.trainers, trainers.promptfl, scenarios\n"
        "assert trainers is not privaudit.trainers and trainers.NAME == 'mine'\n"
        "assert trainers.promptfl.WHOSE == 'mine'\n"
        "assert scenarios is sys.modules['privaudit.scenarios']\n"
    )
    done = run(script, tmp_path, ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_clones_trainers_are_refused_beside_this_package(
    tmp_path: Path,
) -> None:
    shutil.copytree(ROOT / "trainers", tmp_path / "trainers")
    done = run("import trainers.promptfl", tmp_path, ROOT)
    assert done.returncode == 1
    assert "put the folder that holds both first on sys.path" in done.stderr
