"""Shared statistics: what do those leak that clients send with their updates?"""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, Scenario


@SCENARIOS.register("shared-statistics")
def shared_statistics(shadows: int = 50) -> Scenario:
    """The server solves for the membership behind clients' statistics.

    For trainers whose clients send means over their records, such as fedpt-dhapa.

    Args:
        shadows: No attack of this scenario trains any.
    """
    names = ("shared-statistics", "loss-threshold", "token-loss")
    return Scenario(
        name="shared-statistics",
        question="What do the statistics leak that clients send of their records?",
        threat="server",
        attacks={name: ATTACKS.find(name)() for name in names},
        dominates=("server-aggregate", "curious-peer"),
    )
