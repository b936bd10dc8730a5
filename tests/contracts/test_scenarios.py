"""What holds for every scenario; a new file in scenarios/ is tested here by itself."""

import pytest

from privaudit.auditing.scenario import SCENARIOS
from privaudit.checks.contracts import a_scenario_names_what_exists


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_a_scenario_names_what_exists(name: str) -> None:
    a_scenario_names_what_exists(name)
