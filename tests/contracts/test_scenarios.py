"""What holds for every scenario; a new file in scenarios/ is tested here by itself."""

import pytest

from privaudit.attack import ATTACKS
from privaudit.scenario import SCENARIOS
from privaudit.threats import find_threat


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_a_scenario_names_what_exists(name: str) -> None:
    scenario = SCENARIOS.find(name)(shadows=7)
    assert scenario.name == name
    assert scenario.question.endswith("?")
    assert callable(find_threat(scenario.threat))
    assert set(scenario.attacks) <= set(ATTACKS.names())
    assert scenario.attacks
