"""Client membership: was this client in the federation at all?"""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, Scenario


@SCENARIOS.register("client-membership")
def client_membership(shadows: int = 50) -> Scenario:
    """An outsider with the released model asks whether whole clients took part.

    For runs of ``train --members clients``, in which a coin decides for each client
    whether it takes part. Each record is scored against public records of its class,
    and a client by the mean over its records.

    Source: Kandpal et al., "User inference attacks on large language models", EMNLP
    2024.

    Args:
        shadows: No attack of this scenario trains any.
    """
    names = ("confidence", "loss-threshold", "modified-entropy", "token-loss")
    return Scenario(
        name="client-membership",
        question="Was this client in the federation at all?",
        threat="released",
        attacks={name: ATTACKS.find(name)() for name in names},
        unit="client",
    )
