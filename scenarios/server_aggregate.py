"""What does a server learn that sees sums of updates only?"""

from privaudit.auditing.default_attacks import model_attacks
from privaudit.auditing.scenario import SCENARIOS, Scenario

NAME = "server-aggregate"


@SCENARIOS.register(NAME)
def server_aggregate(shadows: int = 50) -> Scenario:
    """Return the scenario: a secure sum hides single uploads from the server.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name=NAME,
        question="What does a server learn that sees sums of updates only?",
        threat="server-aggregate",
        attacks=model_attacks(shadows),
        dominates=("curious-peer",),
    )
