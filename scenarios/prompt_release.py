"""Prompt release: what does a client's released prompt leak?"""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import (
    SCENARIOS,
    Scenario,
    model_attacks,
    weight_attacks,
)


@SCENARIOS.register("prompt-release")
def prompt_release(shadows: int = 50) -> Scenario:
    """Clients release their personal prompts, as in a prompt marketplace.

    Whoever buys one can ask it, and can look at it: ``prompt-discriminant`` does, where what is
    released is one prompt; attacks on weights do, where the model that it began as is public.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name="prompt-release",
        question="What does a client's released prompt leak?",
        threat="released",
        attacks={
            **model_attacks(shadows),
            **weight_attacks(),
            "prompt-discriminant": ATTACKS.find("prompt-discriminant")(shadows=shadows),
        },
        dominates=("black-box-labels",),
    )
