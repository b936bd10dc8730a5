"""The exact bound on how many members are told at few false alarms."""

import numpy as np
import pytest
from scipy.stats import betabinom, binom

from privaudit.statistics.evidence import tail_bound, tail_plan

ALPHA = 0.025


@pytest.mark.parametrize(
    ("members", "others", "margin", "chance"),
    [(100, 100, 0.05, 0.06), (283, 256, 0.05, 0.32), (283, 256, 0.03, 0.07),
     (566, 512, 0.05, 0.82), (1000, 1000, 0.05, 0.99), (3000, 3000, 0.03, 0.99)],
)  # fmt: skip
def test_a_plan_s_chance_is_the_beta_binomial_s(
    members: int, others: int, margin: float, chance: float
) -> None:
    plan = tail_plan(members, others, margin, 0.01, ALPHA)
    assert plan.chance == pytest.approx(chance, abs=0.006)
    allowed = [
        x
        for x in range(members)
        if tail_bound(x, plan.order, (members, others), 0.01, ALPHA) <= margin
    ]
    law = betabinom(members, plan.order, others - plan.order + 1)
    assert plan.chance == pytest.approx(law.pmf(allowed).sum(), abs=1e-9)


@pytest.mark.parametrize(("records", "can"), [(543, True), (500, False)])
def test_five_per_cent_take_543_of_each_class(records: int, can: bool) -> None:
    assert (tail_plan(records, records, 0.05, 0.01, ALPHA).chance >= 0.8) == can


def test_a_bound_counts_a_threshold_that_lies_too_low() -> None:
    """P(threshold too low) + P(so few called | not) is alpha at the bound."""
    bound = tail_bound(6, 8, (283, 256), 0.01, ALPHA)
    missed = binom.sf(7, 256, 0.01)
    few = binom.cdf(6, 283, bound)
    assert missed + (1 - missed) * few == pytest.approx(ALPHA)


def test_where_nothing_is_ruled_out_the_bound_is_one_or_large() -> None:
    assert (
        tail_bound(3, 1, (100, 100), 0.01, ALPHA) == 1
    )  # one other of 100 is no bound
    assert tail_bound(100, 5, (100, 100), 0.01, ALPHA) == 1
    plan = tail_plan(10, 10, 0.05, 0.01, ALPHA)
    assert plan.chance == 0
    assert 0.05 < tail_bound(0, plan.order, (10, 10), 0.01, ALPHA) < 1
    assert tail_plan(5, 1, 0.05, 0.5, ALPHA).order == 1


def test_of_many_records_the_plan_is_that_of_the_least_bound() -> None:
    """Of 45 orders that are sure there rounding chose the 103rd: a bound of 2.3 %."""
    plan = tail_plan(6000, 6000, 0.05, 0.01, ALPHA)
    assert 1 - 1e-6 < plan.chance <= 1
    called = int(betabinom.ppf(0.8, 6000, plan.order, 6001 - plan.order))
    assert tail_bound(called, plan.order, (6000, 6000), 0.01, ALPHA) < 0.0187


@pytest.mark.parametrize("curve", ["chance", "step", "shifted"])
def test_the_bound_holds_for_any_curve(curve: str, rng: np.random.Generator) -> None:
    """2,000 audits: a step just above the true quantile is the worst of curves."""
    members, others, trials, fpr = 300, 250, 2000, 0.01
    plan = tail_plan(members, others, 0.05, fpr, ALPHA)
    below = rng.random((trials, others))  # a share of others above each
    threshold = np.sort(below, axis=1)[:, plan.order - 1]
    drawn = rng.random((trials, members))
    if curve == "step":
        truth, placed = 0.1, np.where(drawn < 0.1, fpr, 1.0)
    elif curve == "shifted":
        truth, placed = fpr**0.5, drawn**2
    else:
        truth, placed = fpr, drawn
    called = (placed <= threshold[:, None]).sum(axis=1)
    bounds = {
        x: tail_bound(x, plan.order, (members, others), fpr, ALPHA)
        for x in set(called.tolist())
    }
    wrong = np.mean([bounds[x] < truth for x in called.tolist()])
    assert wrong <= ALPHA + 4 * np.sqrt(ALPHA * (1 - ALPHA) / trials)
