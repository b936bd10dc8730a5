import numpy as np
import pytest
from scipy.stats import norm

from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.statistics.epsilon.bound import OneRunCanaries
from privaudit_labs.bounds.gaussian_one_run import GaussianOneRun
from privaudit_labs.bounds.gaussian_scores import (
    MOST,
    GaussianScores,
    gaussian_pair_epsilon,
    hockey_stick,
)
from privaudit_tools.selftest.calibration import GaussianCanaries


def integrated(gap: float, first: float, second: float, epsilon: float) -> float:
    """Oracle: the hockey-stick divergence as the integral that it is."""
    x = np.linspace(-60, 60, 200_001)
    over = norm.pdf(x, gap, first) - np.exp(epsilon) * norm.pdf(x, 0, second)
    return float(np.maximum(over, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(
    ("gap", "first", "second"),
    [
        (1.0, 1.0, 1.0),
        (1.0, 1.3, 1.0),
        (0.5, 1.0, 1.4),
        (0.0, 2.0, 1.0),
        (0.0, 1.0, 2.0),
    ],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_the_divergence_is_its_integral(
    gap: float, first: float, second: float, epsilon: float
) -> None:
    found = hockey_stick(*map(np.atleast_1d, (gap, first, second, epsilon)))
    assert found == pytest.approx(integrated(gap, first, second, epsilon), abs=1e-6)


def test_of_equal_spreads_it_is_the_gaussian_mechanism() -> None:
    gaps = np.array([0.0, 0.1, 1.0, 5.0])
    found = gaussian_pair_epsilon(3 * gaps, np.full(4, 3.0), np.full(4, 3.0), 1e-5)
    wanted = [0.0, *(gaussian_epsilon(mu, 1e-5) for mu in gaps[1:].tolist())]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_limits_hold_together_where_spreads_differ() -> None:
    """Scores in vary more, and a gap adds to that: at most one audit of 20 shows too much."""
    rng = np.random.default_rng(2)
    is_member = rng.random((400, 300)) < 0.5
    scores = np.where(is_member, 0.7 + 1.2 * rng.standard_normal((400, 300)),
                      rng.standard_normal((400, 300)))  # fmt: skip
    truth = gaussian_pair_epsilon(np.full(1, 0.7), np.full(1, 1.2), np.ones(1), 1e-5)
    found = GaussianScores().values(scores, is_member)
    assert (found > truth).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert np.median(found) > 1


def test_it_shows_more_than_guesses_of_the_same_scores() -> None:
    rng = np.random.default_rng(1)
    is_member = rng.random((100, 1000)) < 0.5
    scores = GaussianCanaries(4.0).score(is_member, rng)
    guesses = GaussianOneRun(guesses_in=100, guesses_out=100).values(scores, is_member)
    found = GaussianScores().values(scores, is_member)
    assert np.median(found) > np.median(guesses) + 0.8
    assert (found > 4).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


@pytest.mark.parametrize(
    "scores", [np.zeros(40), np.full(40, 0.1), -1.0 * (np.arange(40) % 2 == 0)]
)
def test_equal_and_reversed_scores_show_nothing(scores: np.ndarray) -> None:
    is_member = np.arange(40) % 2 == 0
    assert GaussianScores()(OneRunCanaries(scores, is_member)).value == 0


def test_scores_that_do_not_overlap_show_the_most() -> None:
    is_member = np.arange(40) % 2 == 0
    bound = GaussianScores()(OneRunCanaries(is_member * 1.0, is_member))
    assert bound.value == bound.ceiling == MOST
    assert not bound.can_refute


def test_canaries_of_one_kind_show_nothing() -> None:
    alone = OneRunCanaries(np.arange(9.0), np.ones(9, bool))
    assert GaussianScores()(alone).value == GaussianScores()(alone).ceiling == 0
