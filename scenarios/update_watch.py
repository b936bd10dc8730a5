"""What does each single upload give away, and when?"""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, Scenario

NAME = "update-watch"


@SCENARIOS.register(NAME)
def update_watch(shadows: int = 50) -> Scenario:
    """Return the scenario: the server looks at uploads one by one, round by round.

    Args:
        shadows: Of no use here: no attack trains any.
    """
    names = ("update-alignment", "loss-threshold", "token-loss")
    return Scenario(
        name=NAME,
        question="What does each upload give away, in which round, and of whom?",
        threat="server",
        attacks={name: ATTACKS.find(name)() for name in names},
        by_round=True,
        dominates=("server-aggregate", "curious-peer"),
    )
