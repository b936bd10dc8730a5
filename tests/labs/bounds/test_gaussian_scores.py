import numpy as np
import pytest
from scipy.stats import nct, ttest_ind

from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.statistics.epsilon.bound import OneRunCanaries
from privaudit_labs.bounds.gaussian_one_run import GaussianOneRun
from privaudit_labs.bounds.gaussian_scores import MOST, GaussianScores
from privaudit_tools.selftest.calibration import GaussianCanaries


def test_the_limit_is_that_of_the_two_sample_t_statistic() -> None:
    rng = np.random.default_rng(0)
    is_member = rng.random(300) < 0.5
    scores = GaussianCanaries(4.0).score(is_member[None], rng)[0]
    t = ttest_ind(scores[is_member], scores[~is_member]).statistic
    width = np.sqrt(1 / is_member.sum() + 1 / (~is_member).sum())
    bound = GaussianScores(confidence=0.9)(OneRunCanaries(scores, is_member))
    # the mu whose epsilon is shown has a t this large in one audit of ten
    grid = np.linspace(0.1, 2, 1901)
    mu = next(m for m in grid.tolist() if gaussian_epsilon(m, 1e-5) >= bound.value)
    assert nct.sf(t, 298, mu / width) == pytest.approx(0.1, abs=5e-3)


def test_it_shows_more_than_guesses_of_the_same_scores() -> None:
    rng = np.random.default_rng(1)
    is_member = rng.random((100, 1000)) < 0.5
    scores = GaussianCanaries(4.0).score(is_member, rng)
    guesses = GaussianOneRun(guesses_in=100, guesses_out=100).values(scores, is_member)
    found = GaussianScores().values(scores, is_member)
    assert np.median(found) > np.median(guesses) + 0.8
    assert (found > 4).mean() < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)


@pytest.mark.parametrize("scores", [np.full(40, 0.1), -1.0 * (np.arange(40) % 2 == 0)])
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
