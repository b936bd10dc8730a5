"""What an audit may be asked for."""

from collections.abc import Mapping
from typing import Literal

from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.core.errors import ConfigError, shown
from privaudit.federated.runs.fields import MOST
from privaudit.models.interfaces import TaskKind

USUAL_SHADOWS: Mapping[TaskKind, int] = {"classification": 50, "generation": 0}
"""50 are published; each takes minutes of a model that writes."""


def check_asked(
    scenario: str | Scenario,
    clients: int | Literal["all"],
    shadows: int | None,
    seed: int,
) -> None:
    """Refuse what no audit could do, before data and models are loaded.

    Raises:
        UnknownNameError: No scenario has that name.
        ConfigError: A number is none, or out of range.
    """
    for name, value, fewest in (
        ("seed", seed, 0),
        ("shadows", shadows, 0),
        ("clients", clients, 1),
    ):
        if (name, value) in (("shadows", None), ("clients", "all")):
            continue
        most = 2**64 - 1 if name == "seed" else MOST
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not fewest <= value <= most
        ):
            raise ConfigError(
                f"An audit with {name} = {shown(value)} was requested. Use a whole "
                f"number from {fewest} to {most}"
                f"{', or all' if name == 'clients' else ''}."
            )
    usual = USUAL_SHADOWS["classification"]
    find_scenario(scenario, usual if shadows is None else shadows)
