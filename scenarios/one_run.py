"""A lower bound on epsilon from the canaries of one run."""

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.scenario import SCENARIOS, Scenario


@SCENARIOS.register("one-run")
def one_run(shadows: int = 50) -> Scenario:
    """A lower bound on epsilon from one run, with candidates as canaries.

    Candidates are in or out by independent coins, and so are canaries that ``train
    --canary`` planted among them. The first attack scores them all, for every client.

    Args:
        shadows: No attack of this scenario trains any.
    """
    names = ("loss-threshold", "token-loss")
    return Scenario(
        name="one-run",
        question="Which lower bound on epsilon do this run's canaries give?",
        threat="released",
        attacks={name: ATTACKS.find(name)() for name in names},
        one_run=True,
        dominates=("black-box-labels",),
    )
