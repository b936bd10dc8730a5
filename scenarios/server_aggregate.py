"""Secure aggregation: what does a server learn that sees only sums of updates?"""

from privaudit.auditing.scenario import (
    SCENARIOS,
    Scenario,
    model_attacks,
    weight_attacks,
)


@SCENARIOS.register("server-aggregate")
def server_aggregate(shadows: int = 50) -> Scenario:
    """A curious server behind secure aggregation sees only sums of updates.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name="server-aggregate",
        question="What do sums of updates leak to the server?",
        threat="server-aggregate",
        attacks={**model_attacks(shadows), **weight_attacks()},
        dominates=("curious-peer",),
    )
