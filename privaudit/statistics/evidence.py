"""What scores say of membership beside an AUROC, and how much of a leak does not matter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.membership_test import ALPHA, MembershipTest, Strata, orders
from privaudit.statistics.roc import effective_sizes, rate_with_ends
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
    alpha: float = ALPHA,
) -> MembershipEvidence:
    """Return a test beside how many members are in the tail: of two keys that with more.

    Args:
        test: Of the same strata, exact whatever records resemble others.
        strata: Each has members and others.
        clusters: Each stratum's numbers that resembling records share: the bound counts
            effective numbers.
        limits: Where a tail is looked for.
        alpha: One-sided, of the bound: the order statistic is the best for it.
    """
    truth, keys = _joined(strata)
    members, others = int(truth.sum()), int((~truth).sum())
    sizes = [_sizes(key, truth, clusters, limits.fpr) for key in keys]
    whole = max(1, int(min(m for m, _ in sizes))), max(1, int(min(n for _, n in sizes)))
    plan = tail_plan(*whole, limits.tail_margin, limits.fpr, alpha)
    place = min(math.ceil(plan.order * others / whole[1]), others)
    called = max(int((key[truth] > np.sort(key[~truth])[-place]).sum()) for key in keys)
    return MembershipEvidence(test, plan.order, called * whole[0] / members, whole)


def tail_rate(
    strata: Strata,
    clusters: Sequence[Int[np.ndarray, " _"]] | None = None,
    fpr: float = LIMITS.fpr,
    confidence: float = 0.95,
) -> Estimate:
    """Return the true-positive rate at ``fpr``, by the key that tells more.

    Its upper end is the bound that verdicts rest on; of two keys each lower end has half
    of the error. As exact, and at any number of records.
    """
    truth, keys = _joined(strata)
    each = 1 - (1 - confidence) / len(keys)
    found = [
        rate_with_ends(
            key[truth], key[~truth], fpr, each, _sizes(key, truth, clusters, fpr)
        )
        for key in keys
    ]
    alpha = (1 - confidence) / 2
    high = weigh(None, strata, clusters, Limits(fpr=fpr), alpha).bound(fpr, alpha)
    counts = int(truth.sum()), int((~truth).sum())
    ends = max(rate for rate, *_ in found), max(low for _, low, _ in found), high
    return Estimate(*ends, counts, f"TPR at FPR {fpr:g}, exact", confidence)


def _joined(
    strata: Strata,
) -> tuple[Bool[np.ndarray, " n"], list[Float[np.ndarray, " n"]]]:
    """Return the truth, and keys, of all strata together."""
    truth = np.concatenate([is_member for _, is_member in strata])
    return truth, orders([scores for scores, _ in strata])


def _sizes(
    key: Float[np.ndarray, " n"],
    truth: Bool[np.ndarray, " n"],
    clusters: Sequence[Int[np.ndarray, " _"]] | None,
    fpr: float,
) -> tuple[float, float]:
    alike = None if clusters is None else np.concatenate(clusters)
    both = None if alike is None else (alike[truth], alike[~truth])
    return effective_sizes(key[truth], key[~truth], fpr, both)
