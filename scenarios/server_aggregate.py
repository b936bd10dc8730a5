"""What does a server learn that sees sums of updates only?"""

from privaudit.attacks.loss_threshold import LossThreshold
from privaudit.attacks.shadow import Shadow
from privaudit.scenario import SCENARIOS, Scenario
from privaudit.token_grid import token_attacks

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
        attacks={
            "loss-threshold": LossThreshold(),
            "shadow": Shadow(shadows=shadows),
            **token_attacks(),
        },
    )
