import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from privaudit.statistics.comparisons import p_above_chance
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.roc import auroc, pooled_auroc

seeds = st.integers(0, 2**32 - 1)


def estimate(seed: int, shift: float, confidence: float = 0.95) -> Estimate:
    rng = np.random.default_rng(seed)
    return auroc(rng.normal(shift, 1, 30), rng.normal(0, 1, 40), confidence)


def test_an_interval_that_ends_at_chance_has_a_p_of_one_less_its_confidence() -> None:
    z = 1.959963984540054
    found = Estimate(float(expit(z / 4)), 0.5, float(expit(z / 2)), (9, 9), "AUROC")
    assert p_above_chance(found) == pytest.approx(0.05, abs=1e-12)


def test_twice_as_far_is_a_two_sided_normal_tail() -> None:
    """A logit of 1 with an error of 0.4: z = 2.5, and p = 0.01242 from a table."""
    z = 1.959963984540054 * 0.4
    value, low, high = (float(expit(1 + half)) for half in (0, -z, z))
    found = p_above_chance(Estimate(value, low, high, (9, 9), "AUROC"))
    assert found == pytest.approx(0.012419, abs=1e-6)


def test_a_perfect_attack_has_the_chance_that_all_its_pairs_fell_so() -> None:
    """Five pairs that share no record: 2 * 0.5 ** 5."""
    perfect = auroc(np.arange(5) + 10, np.arange(6))
    assert p_above_chance(perfect) == pytest.approx(2 * 0.5**5)


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5])
def test_what_is_not_above_chance_is_no_evidence(value: float) -> None:
    assert p_above_chance(Estimate(value, 0.0, 0.9, (9, 9), "AUROC")) == 1


def test_without_an_interval_there_is_no_evidence() -> None:
    assert p_above_chance(unresolved("too few", (1,), "AUROC", 0.95, 0.9)) == 1


@given(seeds, st.floats(0, 2), st.sampled_from([0.8, 0.95, 0.999]))
def test_p_is_below_alpha_just_where_the_interval_is_above_chance(
    seed: int, shift: float, confidence: float
) -> None:
    found = estimate(seed, shift, confidence)
    assert (p_above_chance(found) < 1 - confidence) == (found.low > 0.5)


@given(seeds, st.floats(0, 2))
def test_p_does_not_depend_on_the_confidence_that_is_printed(
    seed: int, shift: float
) -> None:
    one, other = (p_above_chance(estimate(seed, shift, c)) for c in (0.5, 0.99))
    assert math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)


def test_without_a_leak_p_is_below_a_twentieth_in_a_fortieth_of_audits() -> None:
    """One side counts, so half of alpha; up to 3 standard errors of 1,500 draws."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(1500, 2, 60))
    found = [
        p_above_chance(pooled_auroc([(one[:30], one[30:]) for one in draw])) <= 0.05
        for draw in draws
    ]
    assert np.mean(found) <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 1500)
    assert np.mean(found) >= 0.01
