import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from privaudit_labs.bounds.gaussian_fit import epsilon_from_mu
from privaudit_labs.bounds.gaussian_one_run import (
    GaussianOneRun,
    one_run_mu,
    too_many_for_mu,
)
from tests.golden import golden


def test_counts_give_the_golden_f_dp_epsilon() -> None:
    """The golden f-DP figures take a Gaussian trade-off function."""
    known = golden("audit_bounds")
    mu = [
        one_run_mu(np.array([v]), r, m, 0.05)[0]
        for m, r, v in known["cnt_m_guess_correct"].tolist()
    ]
    expected = known["cnt_eps_one_run_fdp_s05_d1e5"]
    assert epsilon_from_mu(np.array(mu), 1e-5) == pytest.approx(expected, abs=1e-5)


def reaches(v: int, r: int, m: int, tau: float, mu: float) -> bool:
    """Run the published recursion to its end."""
    right, wrong = tau * v / m, tau * (r - v) / m
    for i in range(v - 1, -1, -1):
        least = max(float(ndtr(ndtri(min(right, 1.0)) - mu)), wrong)
        right, wrong = right + i / (r - i) * (least - wrong), least
    return right + wrong >= r / m


@settings(max_examples=30)
@given(r=st.integers(1, 80), extra=st.integers(0, 200), mu=st.floats(0, 4))
def test_all_counts_at_once_equal_each_alone(r: int, extra: int, mu: float) -> None:
    counts, m = np.arange(r + 1), r + extra
    ours = too_many_for_mu(counts, r, m, np.full(r + 1, mu), 0.05)
    assert ours.tolist() == [reaches(v, r, m, 0.05, mu) for v in range(r + 1)]


def test_it_cannot_refute() -> None:
    assert not GaussianOneRun(guesses_in=1, guesses_out=1).can_refute
