"""What scores say of membership beside an AUROC, and how much of a leak does not matter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.core.errors import ConfigError
from privaudit.statistics.membership_test import (
    ALPHA,
    MembershipTest,
    Strata,
    orders,
)
from privaudit.statistics.roc import effective_sizes
from privaudit.statistics.tail_bound import tail_bound, tail_plan


@dataclass(frozen=True)
class Limits:
    """How much of a leak does not matter, on average and in the tail.

    Attributes:
        margin: Excess of the AUROC over 0.5, in (0, 0.5].
        tail_margin: True-positive rate at a false-positive rate of ``fpr``, in (0, 1).
        fpr: In (0, 1).

    Raises:
        ConfigError: A number is out of range.
    """

    margin: float = 0.05
    tail_margin: float = 0.05
    fpr: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.margin <= 0.5:
            raise ConfigError(
                f"A margin of {self.margin} is not between 0 and 0.5. It is an excess "
                "over an AUROC of 0.5: try 0.05."
            )
        for what, share in (("tail margin", self.tail_margin), ("rate", self.fpr)):
            if not 0 < share < 1:
                raise ConfigError(
                    f"A {what} of {share} is not between 0 and 1. The first is a "
                    "true-positive rate, the second a false-positive rate: try 0.05 and "
                    "0.01."
                )


LIMITS = Limits()


@dataclass(frozen=True)
class MembershipEvidence:
    """What scores say of membership, beside an AUROC and its interval.

    Attributes:
        test: Of membership; None where no draw assigned it, and the interval decides.
        order, called: How many members are above the order-th highest non-member.
        sizes: Members and non-members; of clusters, how many say as much.
    """

    test: MembershipTest | None
    order: int
    called: int | float
    sizes: tuple[int, int]

    def bound(self, fpr: float, alpha: float = ALPHA) -> float:
        """Return the upper bound for the true-positive rate at ``fpr``."""
        return tail_bound(self.called, self.order, self.sizes, fpr, alpha)


def weigh(
    test: MembershipTest | None,
    strata: Strata,
    clusters: Sequence[Int[np.ndarray, " _"]] | None = None,
    limits: Limits = LIMITS,
    audits: int = 1,
) -> MembershipEvidence:
    """Return a test beside how many members are in the tail: of two keys that with more.

    Args:
        test: Of the same strata, exact whatever records resemble others.
        strata: Each has members and others.
        clusters: Each stratum's numbers that resembling records share: the bound counts
            effective numbers.
        limits: Where a tail is looked for.
        audits: The order statistic is the best for so many audits together.
    """
    truth = np.concatenate([is_member for _, is_member in strata])
    keys = orders([scores for scores, _ in strata])
    counts = members, others = int(truth.sum()), int((~truth).sum())
    sizes: tuple[float, float] = counts
    if clusters is not None:
        alike = np.concatenate(clusters)
        both = alike[truth], alike[~truth]
        each = [effective_sizes(k[truth], k[~truth], limits.fpr, both) for k in keys]
        sizes = min(m for m, _ in each), min(n for _, n in each)
    whole = max(1, int(sizes[0])), max(1, int(sizes[1]))
    plan = tail_plan(*whole, limits.tail_margin, limits.fpr, ALPHA / audits)
    place = min(math.ceil(plan.order * others / whole[1]), others)
    called = max(_above(key, truth, place) for key in keys)
    return MembershipEvidence(test, plan.order, called * whole[0] / members, whole)


def _above(
    key: Float[np.ndarray, " n"], truth: Bool[np.ndarray, " n"], place: int
) -> int:
    threshold = np.sort(key[~truth])[-place]
    return int((key[truth] > threshold).sum())
