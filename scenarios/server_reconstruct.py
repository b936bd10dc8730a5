"""Reconstruction by the server: what does it learn from its clients' models?"""

from privaudit.auditing.scenario import (
    SCENARIOS,
    Scenario,
    model_attacks,
    weight_attacks,
)


@SCENARIOS.register("server-reconstruct")
def server_reconstruct(shadows: int = 50) -> Scenario:
    """A curious server reconstructs each client's model from all messages.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name="server-reconstruct",
        question="What does a curious server learn by reconstructing its clients' models?",
        threat="server",
        attacks={**model_attacks(shadows), **weight_attacks()},
        dominates=("server-aggregate", "curious-peer"),
    )
