"""What does an honest-but-curious server learn by rebuilding its clients?"""

from privaudit.auditing.default_attacks import model_attacks
from privaudit.auditing.scenario import SCENARIOS, Scenario

NAME = "server-reconstruct"


@SCENARIOS.register(NAME)
def server_reconstruct(shadows: int = 50) -> Scenario:
    """Return the scenario: the server rebuilds each client from all it sees.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name=NAME,
        question="What does a curious server learn by rebuilding its clients?",
        threat="server",
        attacks=model_attacks(shadows),
        dominates=("server-aggregate", "curious-peer"),
    )
