import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from privaudit.privacy.reconstruction_robustness import reconstruction_bound
from privaudit.statistics.epsilon.gaussian_mechanism import gaussian_epsilon


@pytest.mark.parametrize("candidates", [10, 1000])
def test_the_best_guess_under_a_gaussian_mechanism_stays_below(candidates: int) -> None:
    """One of so many records is in; the adversary names the likeliest: exact leakage."""
    rng = np.random.default_rng(0)
    mu, trials = 1.0, 4000
    answers = rng.normal(size=(trials, candidates))
    answers[:, 0] += mu  # a direction of its own for each candidate
    guessed = (answers.argmax(1) == 0).mean()
    # a candidate's presence moves one coordinate by mu: add/remove-one is mu-GDP
    bound = min(
        reconstruction_bound(gaussian_epsilon(mu, delta), delta, 1 / candidates)
        for delta in np.logspace(-6, -1, 40).tolist()
    )
    assert 1 / candidates < guessed
    assert guessed - 3 * np.sqrt(guessed / trials) <= bound
    # the trade-off function's own bound, of which (epsilon, delta) pairs are tangents
    exact = ndtr(mu + ndtri(1 / candidates))
    assert exact <= bound <= 1.1 * exact


def test_nothing_is_said_where_epsilon_is_large() -> None:
    assert reconstruction_bound(18.6, 1e-5, 1e-6) == 1
    assert reconstruction_bound(1e6, 1e-5, 1e-6) == 1  # no overflow


def test_without_noise_hidden_records_are_as_likely_as_before() -> None:
    assert reconstruction_bound(0.0, 0.0, 0.01) == 0.01
