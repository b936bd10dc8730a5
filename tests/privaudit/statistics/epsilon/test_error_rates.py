import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from privaudit.statistics.epsilon.error_rates import (
    ceiling_from_errors,
    epsilon_from_errors,
    epsilon_from_rates,
    errors_at,
    highest_error_rates,
)


def test_the_highest_rate_leaves_the_tail_to_fewer_errors() -> None:
    errors, trials = np.array([[0, 3, 10], [0, 7, 20]]), np.array([10, 20])
    high = highest_error_rates(errors, trials, 0.025)
    assert high[0, 2] == high[1, 2] == 1
    tails = binom.cdf(errors[:, :2], trials[:, None], high[:, :2])
    assert tails == pytest.approx(np.full((2, 2), 0.025))


def test_without_a_trial_nothing_is_known() -> None:
    none = np.zeros((1, 1), int)
    assert highest_error_rates(none, np.array([0]), 0.025)[0, 0] == 1
    assert ceiling_from_errors(0, 50, 0.05, 0.0) == 0


def test_ceilings_by_hand() -> None:
    """No error among 50: the rate is below q = 1 - .025^(1/50), and (1 - q) / q."""
    rate = 1 - 0.025 ** (1 / 50)
    assert ceiling_from_errors(50, 50, 0.05, 0.0) == pytest.approx(
        math.log((1 - rate) / rate)
    )
    assert round(ceiling_from_errors(50, 50, 0.05, 0.0), 2) == 2.57
    assert round(ceiling_from_errors(25, 25, 0.05, 0.0), 2) == 1.84


def test_a_quarter_of_the_error_for_each_of_four_rates_costs_what_is_said() -> None:
    """If each direction had rates of its own: about 2.4, and by split 1.7."""
    assert round(ceiling_from_errors(50, 50, 0.025, 0.0), 1) == 2.4
    assert round(ceiling_from_errors(25, 25, 0.025, 0.0), 1) == 1.7


def test_epsilon_from_rates_by_hand() -> None:
    fpr, fnr = np.array([0.1]), np.array([0.3])
    assert epsilon_from_rates(fpr, fnr, 0.0)[0] == pytest.approx(math.log(7))
    assert epsilon_from_rates(fnr, fpr, 0.0)[0] == pytest.approx(math.log(7))
    assert epsilon_from_rates(fpr, fnr, 0.2)[0] == pytest.approx(math.log(5))
    assert epsilon_from_rates(np.ones(1), np.ones(1), 0.0)[0] < 0


def test_scores_at_the_threshold_are_called_members() -> None:
    scores, is_member = np.array([[0.0, 1.0, 1.0, 2.0]]), np.array([[1, 1, 0, 0]]) == 1
    everyone = np.ones_like(is_member)
    misses, alarms = errors_at(np.array([[1.0, 1.5]]), scores, is_member, everyone)
    assert misses.tolist() == [[1, 2]]
    assert alarms.tolist() == [[2, 1]]
    none = errors_at(np.array([[1.0]]), scores, is_member, ~everyone)
    assert none[0].tolist() == none[1].tolist() == [[0]]


@given(fpr=st.floats(0.01, 0.99), fnr=st.floats(0.01, 0.99), seed=st.integers(0, 10**6))
def test_both_rates_hold_together(fpr: float, fnr: float, seed: int) -> None:
    """One binomial draw of each: bounds fail together in at most 5 %, both counted."""
    rng, n = np.random.default_rng(seed), np.full(2000, 40)
    misses, alarms = rng.binomial(40, [[fnr], [fpr]], (2, 2000))[:, :, None]
    bound = epsilon_from_errors(misses, alarms, n, n, significance=0.05, delta=0.0)
    truth = epsilon_from_rates(np.array([fpr]), np.array([fnr]), 0.0)[0]
    assert np.mean(bound > truth) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
