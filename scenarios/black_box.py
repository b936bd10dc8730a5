"""Black box: what does query access to the released models leak?"""

from privaudit.auditing.scenario import SCENARIOS, Scenario, model_attacks


@SCENARIOS.register("black-box")
def black_box(shadows: int = 50) -> Scenario:
    """Query access to the released models, which return probabilities.

    No attack here looks into a prompt, so that whoever has it learns as much by these
    attacks: what they show of ``prompt-release`` needs an interface only.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name="black-box",
        question="What does query access to a released model's probabilities leak?",
        threat="released",
        attacks=model_attacks(shadows),
        dominates=("black-box-labels",),
    )
