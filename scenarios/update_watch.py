"""Update watch: what does each single upload leak, and when?"""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, Scenario, weight_attacks


@SCENARIOS.register("update-watch")
def update_watch(shadows: int = 50) -> Scenario:
    """A curious server attacks each upload, round by round.

    Args:
        shadows: Ignored: no attack trains any.
    """
    names = ("update-alignment", "loss-threshold", "token-loss")
    return Scenario(
        name="update-watch",
        question="What does each upload leak, in which round, and of which client?",
        threat="server",
        attacks={**{name: ATTACKS.find(name)() for name in names}, **weight_attacks()},
        by_round=True,
        dominates=("server-aggregate", "curious-peer"),
    )
