"""Do verdicts cry wolf, and do they see one?"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from privaudit.statistics import comparisons, roc, verdict
from privaudit.statistics.evidence import weigh
from privaudit.statistics.membership_test import membership_test
from privaudit_tools.selftest import power
from privaudit_tools.selftest.check import SelftestCheck, Trial, by_coin, share_of

_LEAK, _CHANGE = "verdict on a leak", "verdict on a change"
_DESIGN = power.AurocDesign(0.6)
_FOUND = power.required_n(_DESIGN)  # of each class, for 80 %
_PAIRED = power.DifferenceDesign(0.1, baseline=0.6, correlation=0.5)
_RISE = power.required_n(_PAIRED)


def _shift(auroc: float) -> float:
    return math.sqrt(2) * float(ndtri(auroc))


Groups = Sequence[tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]]


def judged(groups: Groups) -> verdict.Verdict:
    """Return what an audit of clients' members' and others' scores says."""
    strata = [
        (np.concatenate(one), np.arange(len(one[0]) + len(one[1])) < len(one[0]))
        for one in groups
    ]
    test = membership_test(strata)
    auroc = verdict.as_tested(roc.pooled_auroc(groups, is_tested=True), test)
    return verdict.judge_leak(auroc, evidence=weigh(test, strata))


def _alarm(rng: np.random.Generator) -> bool:
    """Say whether noise on five clients is called a leak."""
    groups = [by_coin(rng.normal(size=50), rng)[1:] for _ in range(5)]
    return judged(groups).kind == "leaks"


def _cleared(rng: np.random.Generator) -> bool:
    """Say whether a leak at the margin is called none."""
    members, others = rng.normal(size=(2, 600))
    return judged([(members + _shift(0.55), others)]).kind == "no evidence"


def _finds(rng: np.random.Generator) -> bool:
    members, others = rng.normal(size=(2, _FOUND))
    return judged([(members + _shift(_DESIGN.auroc), others)]).kind == "leaks"


Scored = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]


def _two_attacks(
    rng: np.random.Generator, per_class: int, first: float, second: float
) -> Scored:
    """Return scores of two attacks with those AUROCs on the same records."""
    truth = np.arange(2 * per_class) < per_class
    shared, *independent = math.sqrt(0.5) * rng.normal(size=(3, 2 * per_class))
    return (
        shared + independent[0] + _shift(first) * truth,
        shared + independent[1] + _shift(second) * truth,
        truth,
    )


def _differs(rng: np.random.Generator) -> bool:
    """Say whether two equal attacks on three clients differ at 5 %."""
    groups = [_two_attacks(rng, 20, 0.65, 0.65) for _ in range(3)]
    return comparisons.pooled_paired_auroc_difference(groups).p_value < 0.05


def _sees_change(rng: np.random.Generator) -> bool:
    better = _PAIRED.baseline + _PAIRED.difference
    scores = _two_attacks(rng, _RISE, better, _PAIRED.baseline)
    return comparisons.pooled_paired_auroc_difference([scores]).estimate.low > 0


def _regression(rng: np.random.Generator) -> bool:
    """Say whether any of three rises as large as the margin is called larger."""
    scored = [_two_attacks(rng, 100, 0.65, 0.6) for _ in range(3)]
    kinds = [
        judged.kind
        for judged in comparisons.judge_changes([_change_of(one) for one in scored])
    ]
    return "increase" in kinds or "decrease" in kinds


def _passes(rng: np.random.Generator) -> bool:
    """Say whether a rise as large as the margin is called none."""
    one = _change_of(_two_attacks(rng, 400, 0.65, 0.6))
    return comparisons.judge_changes([one])[0].kind == "no difference"


def _change_of(scores: Scored) -> comparisons.Difference:
    at = comparisons.paired_auroc_at([scores])
    return comparisons.Difference("AUROC", lambda c: at(c).estimate, margin=0.05)


def _any_of_five(rng: np.random.Generator) -> bool:
    return bool((comparisons.holm(rng.random(5)) <= 0.05).any())


def _check(
    group: str, name: str, trial: Trial, high: float, *, low: float = 0.0, trials: int
) -> SelftestCheck:
    return SelftestCheck(group, name, low, high, share_of(trial, trials))


CHECKS = (
    _check(_LEAK, "noise is called a leak", _alarm, 0.025, trials=1000),
    _check(_LEAK, "a leak at the margin is called none", _cleared, 0.025, trials=1000),
    _check(
        _LEAK,
        f"AUROC 0.6 is found at {_FOUND} + {_FOUND}, planned for 80 %",
        _finds,
        0.86,
        low=0.74,
        trials=1000,
    ),
    _check(_CHANGE, "equal attacks differ at 5 %", _differs, 0.05, trials=1000),
    _check(
        _CHANGE,
        f"a rise by 0.1 is found at {_RISE} + {_RISE}, planned for 80 %",
        _sees_change,
        0.86,
        low=0.7,
        trials=1000,
    ),
    _check(_CHANGE, "a rise at the margin is called none", _passes, 0.025, trials=400),
    _check(
        _CHANGE, "any of 3 such rises is called larger", _regression, 0.05, trials=100
    ),
    _check(
        _CHANGE, "any of 5 true nulls falls after Holm", _any_of_five, 0.05, trials=2000
    ),
)
