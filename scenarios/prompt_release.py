"""What does somebody learn who is given a client's final prompt?"""

from privaudit.auditing.default_attacks import model_attacks
from privaudit.auditing.scenario import SCENARIOS, Scenario

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
        attacks=model_attacks(shadows),
        dominates=("black-box-labels",),
    )
