import numpy as np
import pytest
from scipy.special import ndtri

from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.statistics.epsilon.bound import IndependentRuns
from privaudit_labs.bounds.gaussian_fit import GaussianFit, epsilon_from_mu
from tests.golden import golden


@pytest.mark.parametrize("case", range(8))
def test_the_same_thresholds_equal_the_golden_fit(case: int) -> None:
    known = golden("audit_bounds") | golden("audit_bounds", f"c{case}_")
    inside, outside = known["in_scores"], known["out_scores"]
    coins = np.arange(len(inside) + len(outside)) < len(inside)
    runs = IndependentRuns(np.concatenate([inside, outside]), coins)
    grid = tuple(known["hull_thresholds"].tolist())
    for row, a in enumerate(known["significance"].tolist()):
        for column, d in enumerate(known["delta_one_run"].tolist()):
            ours = GaussianFit(thresholds=grid, confidence=1 - a, delta=d)(runs)
            expected = known["gdp"][row, column]
            assert ours.value == pytest.approx(expected, abs=1e-5)
            assert not ours.can_refute


def test_mu_by_hand() -> None:
    """No error among 50 + 50: both rates below 1 - .025^(1/50), both z scores add."""
    rate = 1 - 0.025 ** (1 / 50)
    mu = -2 * float(ndtri(rate))
    ours = GaussianFit(thresholds=(0.0,)).ceiling(50, 50)
    assert ours == pytest.approx(gaussian_epsilon(mu, 1e-5))


def test_a_mu_that_is_not_above_0_is_no_leak() -> None:
    ours = epsilon_from_mu(np.array([-np.inf, -1.0, 0.0, 1.0]), 1e-5)
    assert ours == pytest.approx([0, 0, 0, gaussian_epsilon(1.0, 1e-5)])


def test_delta_0_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        GaussianFit(thresholds=(0.0,), delta=0.0)
