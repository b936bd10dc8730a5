"""What scores say of membership beside an AUROC, and how much of a leak does not matter.

How many members may be told at few false alarms: an exact upper bound.

An AUROC near 1/2 leaves room for a few members that are certain. The bound is on the
true-positive rate at a false-positive rate of at most ``fpr``, and holds for every ROC
curve: the threshold is an order statistic of the non-members that is fixed before any
score is seen, and how far it may lie from the true one is part of the error. If fewer than
so many others reach the true one, it lies above the order statistic, and so do all members
that reach it: ties with the order statistic are not counted. Of records of
several clients rates are averages over clients, and the bound stays valid.

Source: order statistics as bounds of a quantile: David and Nagaraja, "Order statistics",
3rd edition, Wiley 2003, section 7.1; tosses of unlike chance: Hoeffding, "On the
distribution of the number of successes in independent trials", Annals of Mathematical
Statistics 27, 1956.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtr, bdtrc, betaincinv, betaln

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.membership_test import ALPHA, MembershipTest, Strata, orders
from privaudit.statistics.roc import effective_sizes, rate_with_ends

_CHANCE = 0.8  # that a plan succeeds, as usual
_ALIKE = 1e-6  # chances that rounding alone may order, as where all are nearly 1


@dataclass(frozen=True)
class TailPlan:
    """How a tail is looked for, before any score is seen.

    Attributes:
        order: The threshold is the order-th highest score of the non-members.
        chance: That the margin is ruled out if nothing leaks; 0 if it cannot be.
    """

    order: int
    chance: float


@lru_cache(maxsize=4096)
def tail_plan(
    members: int, others: int, margin: float, fpr: float, alpha: float
) -> TailPlan:
    """Return the order that rules out a rate above ``margin`` most often.

    Where several do, or none can, that whose bound is least in 80 % of audits without a leak.

    Args:
        members: At least 1.
        others: At least 1.
        margin: Of the true-positive rate, in (0, 1).
        fpr: The false-positive rate, in (0, 1).
        alpha: One-sided: of a bound below the truth, in (0, 1).

    Example:
        >>> plan = tail_plan(283, 256, 0.05, 0.01, 0.025)
        >>> plan.order, round(plan.chance, 2)
        (8, 0.32)
    """
    most = 14 + math.ceil(others * fpr + 6 * math.sqrt(others * fpr))
    tried = range(1, min(others, most) + 1)
    orders = [one for one in tried if missed(one, others, fpr) < alpha]
    if not orders:  # fewer others than the rate has above a threshold
        return TailPlan(others, 0.0)
    chances = {
        order: _chance(order, members, others, margin, fpr, alpha) for order in orders
    }
    most_often = max(chances.values())
    usual = partial(_usual, sizes=(members, others), fpr=fpr, alpha=alpha)
    best = min((o for o in orders if chances[o] >= most_often - _ALIKE), key=usual)
    return TailPlan(best, min(chances[best], 1.0))


def missed(order: int, others: int, fpr: float) -> float:
    """Return the chance that the order-th highest of the others lies below the true threshold."""
    return float(bdtrc(order - 1, others, fpr))


def tail_bound(
    called: int | float, order: int, sizes: tuple[int, int], fpr: float, alpha: float
) -> float:
    """Return the upper bound for the true-positive rate at ``fpr``; 1 if there is none.

    Args:
        called: How many members are above the order-th highest non-member.
        order: As :func:`tail_plan` has it.
        sizes: Members and non-members.
        fpr: As :func:`tail_plan` has it.
        alpha: One-sided, in (0, 1).

    Example:
        >>> round(tail_bound(18, 19, (1000, 1000), 0.01, 0.025), 3)
        0.029
    """
    members, others = sizes
    chance = missed(order, others, fpr)
    if chance >= alpha or called >= members:
        return 1.0
    level = (alpha - chance) / (1 - chance)
    return float(betaincinv(called + 1, members - called, 1 - level))


def _chance(
    order: int, members: int, others: int, margin: float, fpr: float, alpha: float
) -> float:
    """Return how often so few members are called, without a leak, that the margin is out."""
    chance = missed(order, others, fpr)
    level = (alpha - chance) / (1 - chance)
    allowed = np.arange(min(members, math.ceil(members * margin) + 1))
    most = int((bdtr(allowed, members, margin) <= level).sum())
    return float(_called(order, members, others, most).sum())


def _usual(order: int, sizes: tuple[int, int], fpr: float, alpha: float) -> float:
    """Return a bound that 80 % of audits without a leak have, or a smaller one."""
    likely = 20 + math.ceil(4 * sizes[0] * order / sizes[1])  # 80 % are far below
    law = _called(order, *sizes, min(sizes[0], likely) + 1)
    called = int((np.cumsum(law) < _CHANCE).sum())
    return tail_bound(called, order, sizes, fpr, alpha)


def _called(
    order: int, members: int, others: int, below: int
) -> Float[np.ndarray, " counts"]:
    """Return the chance of each number of members, fewer than ``below``, at the threshold.

    Where nothing leaks it is beta-binomial.
    """
    count = np.arange(below)
    choose = -betaln(members - count + 1, count + 1) - math.log(members + 1)
    law = betaln(count + order, members - count + others - order + 1)
    return np.exp(choose + law - betaln(order, others - order + 1))


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
