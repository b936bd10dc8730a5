"""What does somebody learn who is given a client's final prompt?"""

from privaudit.attacks.loss_threshold import LossThreshold
from privaudit.attacks.shadow import Shadow
from privaudit.scenario import SCENARIOS, Scenario
from privaudit.token_grid import token_attacks

NAME = "prompt-release"


@SCENARIOS.register(NAME)
def prompt_release(shadows: int = 50) -> Scenario:
    """Return the scenario: personal prompts are given away, as a service would.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name=NAME,
        question="What does somebody learn who is given a client's final prompt?",
        threat="released",
        attacks={
            "loss-threshold": LossThreshold(),
            "shadow": Shadow(shadows=shadows),
            **token_attacks(),
        },
    )
