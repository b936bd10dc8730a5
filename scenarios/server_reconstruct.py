"""What does an honest-but-curious server learn by rebuilding its clients?"""

from privaudit.attacks.loss_threshold import LossThreshold
from privaudit.attacks.shadow import Shadow
from privaudit.scenario import SCENARIOS, Scenario
from privaudit.token_grid import token_attacks

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
        attacks={
            "loss-threshold": LossThreshold(),
            "shadow": Shadow(shadows=shadows),
            **token_attacks(),
        },
    )
