"""Black box of labels: what does query access to predicted labels leak?"""

from privaudit.auditing.scenario import SCENARIOS, Scenario, model_attacks


@SCENARIOS.register("black-box-labels")
def black_box_labels(shadows: int = 50) -> Scenario:
    """Query access to the released models, which return predicted labels only.

    The loss threshold is then the gap attack: who is classified rightly is called a
    member.

    Source: Yeom et al., "Privacy risk in machine learning: analyzing the connection to
    overfitting", CSF 2018; Choquette-Choo et al., "Label-only membership inference
    attacks", ICML 2021, whose moved queries ``label-only`` of privaudit-labs makes.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name="black-box-labels",
        question="What does query access to a released model's labels leak?",
        threat="released",
        attacks=model_attacks(shadows),
        answers="labels",
    )
