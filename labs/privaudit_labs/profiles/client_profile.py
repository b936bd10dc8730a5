"""Client profile: what does a server learn of whole clients, not of single records?"""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, Scenario

NAME = "client-profile"


@SCENARIOS.register(NAME)
def client_profile(shadows: int = 50) -> Scenario:
    """A curious server estimates how much of its data a client used, and its classes.

    The share of its candidates that each trained on, and the share of each class, are
    estimated with intervals; RMIA's shadow models serve both, and further ones with
    known shares of the classes.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return Scenario(
        name=NAME,
        question="What does a server learn of a client as a whole?",
        threat="server",
        attacks={
            "rmia": ATTACKS.find("rmia")(shadows=shadows),
            "loss-threshold": ATTACKS.find("loss-threshold")(),
            "token-loss": ATTACKS.find("token-loss")(),
        },
        dominates=("server-aggregate", "curious-peer"),
    )
