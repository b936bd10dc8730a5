"""Curious peer: what does a client learn about the others from what it receives?"""

from privaudit.auditing.scenario import (
    SCENARIOS,
    Scenario,
    model_attacks,
    weight_attacks,
)


@SCENARIOS.register("curious-peer")
def curious_peer(shadows: int = 50, peer: str = "client-0") -> Scenario:
    """A curious client attacks all others from what it receives.

    Everywhere it receives averages. In pFedMoAP it also gets other clients' prompts as
    experts, without their names; the audit says how much more these tell.

    Args:
        shadows: Shadow models for each attacked client.
        peer: The client that looks on; it is not attacked.
    """
    return Scenario(
        name="curious-peer",
        question="What does a curious client learn about the others' records?",
        threat=f"peer:{peer}",
        attacks={**model_attacks(shadows), **weight_attacks()},
    )
