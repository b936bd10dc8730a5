"""Which modules a look-up imports."""

import subprocess
import sys

import pytest

from privaudit.attacks import MODULES
from privaudit.auditing.attack import ATTACKS

LOOK_UP = """
import sys
from privaudit.auditing.attack import ATTACKS
ATTACKS.find(sys.argv[1])
print(*(m for m in sys.modules if m.startswith("privaudit.attacks.")))
"""


@pytest.mark.parametrize("name", ["min-k", "loss-threshold", "lira"])
def test_a_look_up_imports_one_module_of_attacks(name: str) -> None:
    command = [sys.executable, "-c", LOOK_UP, name]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    stem = MODULES.get(name, name.replace("-", "_"))
    assert found.stdout.split() == [f"privaudit.attacks.{stem}"]


def test_each_attack_stands_where_a_look_up_expects_it() -> None:
    homes = {name: ATTACKS.find(name).__module__ for name in ATTACKS.names()}
    expected = {n: MODULES.get(n, n.replace("-", "_")) for n in [*homes, *MODULES]}
    assert homes == {n: f"privaudit.attacks.{m}" for n, m in expected.items()}
