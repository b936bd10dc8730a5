import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from privaudit.statistics.epsilon.designs import OneRunCanaries
from privaudit.statistics.epsilon.one_run import (
    OneRunGuesses,
    one_run_epsilon,
    one_run_p_value,
)
from tests.golden import golden


def plain_p_value(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """Return theorem 5.2's bound term by term."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = sum(binom.pmf(j, r, q) for j in range(v, r + 1))
    windows = [
        sum(binom.pmf(j, r, q) for j in range(max(v - i, 0), v)) / i
        for i in range(1, m + 1)
    ]
    return float(min(tail + 2 * m * delta * max(windows), 1.0))


@given(
    m=st.integers(1, 25),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    epsilon=st.floats(0, 8),
    delta=st.sampled_from([0.0, 1e-5, 1e-2]),
)
def test_the_p_value_equals_a_loop(
    m: int, share: tuple[float, float], epsilon: float, delta: float
) -> None:
    r = max(1, round(m * share[0]))
    v = round(r * share[1])
    ours = one_run_p_value(np.array([v]), r, m, np.array([epsilon]), delta)
    assert ours[0] == pytest.approx(plain_p_value(v, r, m, epsilon, delta), abs=1e-10)


def test_p_values_equal_the_golden_ones() -> None:
    known = golden("audit_bounds")
    names = ("m", "n_guess", "n_correct", "eps", "delta", "value")
    rows = zip(*(known[f"pv_{name}"].tolist() for name in names), strict=True)
    for m, r, v, epsilon, delta, expected in rows:
        ours = one_run_p_value(np.array([v]), r, m, np.array([epsilon]), delta)
        assert ours[0] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("delta", "name"), [(0.0, "d0"), (1e-5, "d1e5")])
def test_counts_give_the_golden_epsilon(delta: float, name: str) -> None:
    known = golden("audit_bounds")
    ours = [
        one_run_epsilon(np.array([v]), r, m, significance=0.05, delta=delta)[0]
        for m, r, v in known["cnt_m_guess_correct"].tolist()
    ]
    expected = known[f"cnt_eps_one_run_s05_{name}"]
    assert np.array(ours) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("case", range(8))
def test_the_highest_scores_give_the_golden_bound_at_their_threshold(case: int) -> None:
    """There a threshold says how many to guess at; here that number is given."""
    known = golden("audit_bounds") | golden("audit_bounds", f"c{case}_")
    inside, outside = known["in_scores"], known["out_scores"]
    above = int(known["explicit_counts_tp_fp"].sum())
    canaries = OneRunCanaries(
        np.concatenate([inside, outside]),
        np.arange(len(inside) + len(outside)) < len(inside),
    )
    expected = known["one_run_explicit"]
    for row, a in enumerate(known["significance"].tolist()):
        for column, d in enumerate(known["delta_one_run"].tolist()):
            method = OneRunGuesses(
                guesses_in=above, guesses_out=0, confidence=1 - a, delta=d
            )
            ours = method(canaries).value
            assert ours == pytest.approx(expected[row, column], abs=2e-6)


@pytest.mark.parametrize(("m", "expected"), [(100, 3.49), (1000, 5.81)])
def test_ceilings_without_delta(m: int, expected: float) -> None:
    q = 0.05 ** (1 / m)
    ours = OneRunGuesses(guesses_in=m // 2, guesses_out=m // 2).ceiling(m, 0)
    assert ours == pytest.approx(math.log(q / (1 - q)))
    assert round(ours, 2) == expected


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_p_value_rises_with_epsilon_wherever_it_decides(delta: float) -> None:
    """Else there would be rejected values beyond the one that bisection finds."""
    for r, m in ((10, 10), (10, 300), (100, 100), (100, 2000)):
        for v in range(1, r + 1, max(1, r // 10)):
            grid = np.linspace(0, 8, 400)
            p = one_run_p_value(np.full(400, v), r, m, grid, delta)
            deciding = np.minimum(p, 0.2)
            assert (np.diff(deciding) >= -1e-12).all(), (r, m, v)


@given(
    r=st.integers(1, 200),
    m=st.integers(200, 2000),
    delta=st.sampled_from([0.0, 1e-6, 1e-4]),
)
def test_more_right_guesses_never_show_less(r: int, m: int, delta: float) -> None:
    epsilon = one_run_epsilon(np.arange(r + 1), r, m, significance=0.05, delta=delta)
    assert (np.diff(epsilon) >= -1e-9).all()
    assert epsilon[0] == 0
