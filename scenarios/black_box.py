"""What does somebody learn who may only ask the released models?"""

from privaudit.auditing.default_attacks import model_attacks
from privaudit.auditing.scenario import SCENARIOS, Scenario

NAME = "black-box"


@SCENARIOS.register(NAME)
def black_box(shadows: int = 50) -> Scenario:
    """Return the scenario: released models are asked, and answer with probabilities.

    No attack here looks into a prompt, so that whoever has it learns as much by these
    attacks: what they show of ``prompt-release`` needs an interface only.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name=NAME,
        question="What does somebody learn from a released model's probabilities?",
        threat="released",
        attacks=model_attacks(shadows),
        answers="probabilities",
        dominates=("black-box-labels",),
    )
