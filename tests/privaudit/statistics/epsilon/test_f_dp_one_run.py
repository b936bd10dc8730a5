import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.statistics.epsilon.f_dp_one_run import (
    FDPOneRun,
    f_dp_one_run_epsilon,
    f_dp_one_run_p_value,
)
from privaudit.statistics.epsilon.one_run import one_run_epsilon, one_run_p_value


def too_many(v: int, r: int, m: int, tau: float, epsilon: float, delta: float) -> bool:
    """Run the published recursion, with both branches of the trade-off function."""
    right, wrong = tau * v / m, tau * (r - v) / m
    for i in range(v - 1, -1, -1):
        flat = (right - delta) * math.exp(-epsilon)
        steep = 1 - delta - (1 - right) * math.exp(epsilon)
        least = max(flat, steep, 0.0, wrong)
        right, wrong = right + i / (r - i) * (least - wrong), least
        if right + wrong >= r / m * (1 + 1e-12):
            return True
    return right + wrong >= r / m * (1 + 1e-12)


@given(
    m=st.integers(1, 200),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    epsilon=st.floats(0, 8),
    delta=st.sampled_from([0.0, 1e-5, 1e-3, 0.05]),
)
def test_the_closed_form_is_where_the_recursion_turns(
    m: int, share: tuple[float, float], epsilon: float, delta: float
) -> None:
    r = max(1, round(m * share[0]))
    v = round(r * share[1])
    p = f_dp_one_run_p_value(np.array([v]), r, m, np.array([epsilon]), delta)[0]
    assert 0 <= p <= 1
    if p > 1e-12:
        assert not too_many(v, r, m, p * (1 - 1e-6), epsilon, delta)
    if p < 0.999:
        assert too_many(v, r, m, p * (1 + 1e-6) + 1e-15, epsilon, delta)


@given(r=st.integers(1, 150), extra=st.integers(0, 500), epsilon=st.floats(0, 6))
def test_without_delta_it_is_no_tighter_than_the_binomial(
    r: int, extra: int, epsilon: float
) -> None:
    counts = np.arange(r + 1)
    ours = f_dp_one_run_p_value(counts, r, r + extra, np.full(r + 1, epsilon), 0.0)
    tail = one_run_p_value(counts, r, r + extra, np.full(r + 1, epsilon), 0.0)
    assert (ours >= tail - 1e-9).all()
    assert ours[-1] == pytest.approx(tail[-1])  # all right: the same


def test_epsilon_is_where_the_p_value_is_the_significance() -> None:
    counts = np.array([60, 80, 100])
    epsilon = f_dp_one_run_epsilon(counts, 100, 1000, significance=0.05, delta=1e-5)
    p = f_dp_one_run_p_value(counts, 100, 1000, epsilon, 1e-5)
    assert p == pytest.approx(np.full(3, 0.05), abs=1e-9)


def test_few_guesses_among_many_canaries_lose_less_to_delta() -> None:
    count, options = np.array([200]), {"significance": 0.05, "delta": 1e-5}
    ours = f_dp_one_run_epsilon(count, 200, 20_000, **options)
    assert ours[0] > one_run_epsilon(count, 200, 20_000, **options)[0] + 0.1


@given(
    r=st.integers(1, 200),
    m=st.integers(200, 2000),
    delta=st.sampled_from([0.0, 1e-6, 1e-4]),
)
def test_more_right_guesses_never_show_less(r: int, m: int, delta: float) -> None:
    counts = np.arange(r + 1)
    epsilon = f_dp_one_run_epsilon(counts, r, m, significance=0.05, delta=delta)
    assert (np.diff(epsilon) >= -1e-9).all()
    assert epsilon[0] == 0


def test_the_ceiling_without_delta_is_the_binomial_one() -> None:
    ours = FDPOneRun(guesses_in=50, guesses_out=50).ceiling(50, 50)
    assert round(ours, 2) == 3.49
