"""What the wheel says to find in privaudit-labs, and what stands there."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS
from privaudit.core.registry import Registry

LABS = Path(__file__).parents[2] / "labs" / "pyproject.toml"


@pytest.mark.parametrize("registry", [ATTACKS, SCENARIOS], ids=lambda one: one.kind)
def test_names_that_moved_are_said_to_be_in_labs(registry: Registry[Any]) -> None:
    added = tomllib.loads(LABS.read_text())["project"]["entry-points"]
    assert [*registry.in_labs()] == [*added[f"privaudit.{registry.kind}s"]]
