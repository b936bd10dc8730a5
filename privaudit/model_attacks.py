"""The attacks on any rebuilt or released model: one named beforehand, and others."""

from privaudit.attack import ATTACKS, Attack
from privaudit.token_grid import token_attacks

NAMED = "loss-threshold"
ON_SHADOWS = ("shadow", "lira", "rmia")
OTHERS = ("confidence", "modified-entropy", "entropy")


def model_attacks(shadows: int) -> dict[str, Attack]:
    """Return the attacks by name; the first one carries the verdict.

    The loss threshold was named first: it is cheap, needs nothing of the adversary's
    own, and attacks every client. On models that write, the token loss stands for it.

    Args:
        shadows: Shadow models for each attacked client.
    """
    return {
        NAMED: ATTACKS.find(NAMED)(),
        **token_attacks(),
        **{name: ATTACKS.find(name)(shadows=shadows) for name in ON_SHADOWS},
        **{name: ATTACKS.find(name)() for name in OTHERS},
    }
