"""How many members may be told at few false alarms: an exact upper bound.

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
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from jaxtyping import Float
from scipy.special import bdtr, bdtrc, betaincinv, betaln

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
    chances: Float[np.ndarray, " counts"] = np.exp(
        choose + law - betaln(order, others - order + 1)
    )
    return chances
