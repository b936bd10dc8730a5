"""The attacks on any rebuilt or released model: one named beforehand, and others."""

from dataclasses import dataclass
from math import inf

from privaudit.auditing.attack import ATTACKS, Attack

SLICES = ("image", "description")
SHARES = (0, 10, 100)
ALPHAS = (0.5, 1.0, 2.0, inf)
TOKEN_LOSS = "token-loss"
ON_TOKENS = (
    "max-renyi",
    "min-k",
    "min-k-plus-plus",
    "mod-renyi",
    "max-prob-gap",
    "perplexity-zlib",
)


@dataclass(frozen=True)
class GridCell:
    """One cell of the grid.

    Attributes:
        share: K in percent.
        alpha: The order of the entropy.
    """

    slice: str
    share: int
    alpha: float

    @property
    def order(self) -> str:
        """The order as it is written."""
        return {0.5: "½", inf: "∞"}.get(self.alpha, f"{self.alpha:g}")

    @property
    def attack(self) -> str:
        """The name of its attack."""
        return f"max-renyi {self.slice} {self.share} % order {self.order}"


def places() -> list[GridCell]:
    """Return the grid of Table 4 of FedRand, for all orders of the entropy."""
    return [GridCell(s, k, a) for s in SLICES for k in SHARES for a in ALPHAS]


def token_attacks() -> dict[str, Attack]:
    """Return the attacks on texts by name; the first one is the cheap one.

    That is the likelihood of people's own words, as the loss is for classifiers.
    MaxRényi does not look at them: it is there to be compared with what is published.
    """
    attacks: dict[str, Attack] = {
        name: ATTACKS.find(name)() for name in (TOKEN_LOSS, *ON_TOKENS)
    }
    make = ATTACKS.find("max-renyi")
    return attacks | {
        place.attack: make(slice=place.slice, share=place.share, alpha=place.alpha)
        for place in places()
    }


NAMED = "rmia"
LOSS = "loss-threshold"
ON_SHADOWS = ("lira", "shadow")
OTHERS = ("confidence", "modified-entropy", "entropy")


def model_attacks(shadows: int) -> dict[str, Attack]:
    """Return the attacks by name; the first one carries the verdict.

    RMIA was named on runs of other seeds (docs/decisions/0012-headline.md). Without
    shadow models it is left out, and the loss threshold, which needs nothing of the
    adversary's own, is the first; on models that write, the token loss.
    """
    return {
        NAMED: ATTACKS.find(NAMED)(shadows=shadows),
        LOSS: ATTACKS.find(LOSS)(),
        **token_attacks(),
        **{name: ATTACKS.find(name)(shadows=shadows) for name in ON_SHADOWS},
        **{name: ATTACKS.find(name)() for name in OTHERS},
    }
