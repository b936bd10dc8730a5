import math
from unittest.mock import patch

import numpy as np
import pytest
from scipy import stats

from privaudit.statistics import paired_t
from privaudit.statistics.estimate import proportion
from privaudit.statistics.paired_t import (
    FEWEST,
    TWO_LOOKS,
    PairedKind,
    judge_pairs,
    pairs_that_decide,
    planned_looks,
)

MARGIN = 0.05
NOT_COUNTED = patch.object(paired_t, "pairs_that_decide", lambda *_: None)  # it is slow


def last_kind(differences: list[float]) -> PairedKind:
    """Return what a gate says whose looks are planned by its number of pairs."""
    looks = planned_looks(len(differences))
    for look in looks:
        found = judge_pairs(differences[:look], [0.0] * look, MARGIN, len(looks))
        if found.kind in ("pass", "regression"):
            break
    return found.kind


@NOT_COUNTED
def shares(mean: float, spread: float, pairs: int, gates: int = 1000) -> dict[str, int]:
    rng = np.random.default_rng([round(1000 * mean), round(1000 * spread), pairs])
    kinds = [
        last_kind(one) for one in rng.normal(mean, spread, (gates, pairs)).tolist()
    ]
    return {kind: kinds.count(kind) for kind in set(kinds)}


@pytest.mark.parametrize("pairs", [4, 10, 12, 20])
def test_errors_at_the_margin_are_at_most_the_level_a_side(pairs: int) -> None:
    """At the margin itself both answers are wrong: 2.5 % each, all looks together."""
    found, gates = shares(MARGIN, 0.04, pairs), 1000
    limit = 0.025 + 4 * math.sqrt(0.025 * 0.975 / gates)
    for wrong in ("pass", "regression"):
        assert found.get(wrong, 0) / gates <= limit


def test_nothing_that_differs_is_called_a_rise_by_chance_alone() -> None:
    found, gates = shares(0.0, 0.04, 10), 1000
    risen = found.get("rose, size open", 0) + found.get("regression", 0)
    assert risen / gates <= 0.025 + 4 * math.sqrt(0.025 * 0.975 / gates)


@NOT_COUNTED
def test_who_looks_after_every_pair_errs_more_often() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for one in rng.normal(MARGIN, 0.04, (300, 20)).tolist():
        looked = (judge_pairs(one[:n], [0.0] * n, MARGIN) for n in range(4, 21))
        wrong += any(found.kind == "regression" for found in looked)
    assert proportion(wrong, 300, 0.999).low > 0.025


def test_ten_seeds_decide_a_rise_and_its_absence() -> None:
    """The two sides' errors of 0.025 and a spread over seeds of 0.02: 88 % either way."""
    spread = math.hypot(0.025 * math.sqrt(2), 0.02)
    for mean, kind in ((0.0, "pass"), (0.1, "regression")):
        found = proportion(shares(mean, spread, 10)[kind], 1000, 0.999)
        assert found.low > 0.82


def test_the_interval_is_students() -> None:
    first, second = [0.6, 0.7, 0.65, 0.62, 0.66], [0.5, 0.61, 0.6, 0.55, 0.5]
    found = judge_pairs(first, second, MARGIN, looks=2)
    test = stats.ttest_rel(first, second)
    low, high = test.confidence_interval(0.975)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((low, high))
    assert found.estimate.n == (5,)


@pytest.mark.parametrize(
    ("differences", "kind"),
    [
        ([0.0, 0.01, -0.01, 0.0], "pass"),
        ([-0.3, -0.2, -0.3, -0.2], "pass"),
        ([0.1, 0.11, 0.09, 0.1], "regression"),
        ([0.03, 0.05, 0.07, 0.06], "rose, size open"),
        ([-0.1, 0.1, 0.05, -0.05], "underpowered"),
        ([0.0, 0.0, 0.0, 0.0], "pass"),  # runs that do not differ at all
    ],
)
def test_answers_by_hand(differences: list[float], kind: PairedKind) -> None:
    found = judge_pairs(differences, [0.0] * 4, MARGIN)
    assert found.kind == kind
    assert (found.further is None) == (kind in ("pass", "regression"))


def test_looks_share_the_error() -> None:
    first = [0.08, 0.1, 0.055, 0.11, 0.06, 0.058]
    assert judge_pairs(first, [0.0] * 6, MARGIN).kind == "regression"
    assert judge_pairs(first, [0.0] * 6, MARGIN, looks=2).kind == "rose, size open"


def test_looks_are_planned() -> None:
    assert [planned_looks(n) for n in (0, FEWEST - 1)] == [(), ()]
    assert [planned_looks(n) for n in (4, 11)] == [(4,), (11,)]
    assert planned_looks(TWO_LOOKS) == (6, 12)
    assert planned_looks(31) == (15, 31)


def test_as_many_pairs_as_it_says_decide_in_eighty_of_a_hundred() -> None:
    spread = 0.04
    enough, surely = pairs_that_decide(spread, 10, MARGIN)
    assert FEWEST <= enough < surely
    found = shares(0.0, spread, enough)
    assert proportion(found["pass"], 1000, 0.999).high > 0.8
    assert proportion(shares(0.0, spread, FEWEST)["pass"], 1000, 0.999).high < 0.8


def test_a_spread_of_few_pairs_may_be_larger_than_it_looks() -> None:
    few, many = (pairs_that_decide(0.04, n, MARGIN) for n in (4, 100))
    assert few[0] == many[0]
    assert few[1] > many[1]
