"""What holds for every scenario; a new file in scenarios/ is tested here by itself."""

from typing import get_args

import pytest

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, grid_cells
from privaudit.federation.threat_models import find_threat
from privaudit.models.interfaces import TaskKind


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_a_scenario_names_what_exists(name: str) -> None:
    scenario = SCENARIOS.find(name)(shadows=7)
    assert scenario.name == name
    assert scenario.question.endswith("?")
    assert callable(find_threat(scenario.threat))
    grid = {cell.attack for cell in grid_cells()}
    assert set(scenario.attacks) <= {*ATTACKS.names(), *grid}
    tasks = {attack.task for attack in scenario.attacks.values()}
    assert tasks <= {*get_args(TaskKind), "either"}
    for kind in get_args(TaskKind):
        if tasks & {kind, "either"}:
            assert scenario.for_task(kind).attacks
