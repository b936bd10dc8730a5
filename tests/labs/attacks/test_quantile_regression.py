import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from sklearn.linear_model import RidgeCV

from privaudit.core.errors import AttackError
from privaudit.statistics.roc import auroc
from privaudit.trainers.promptfl import PromptFL
from privaudit_labs.attacks.quantile_regression import (
    LOG_CHI_SQUARE,
    QuantileRegression,
    _Expected,
    between_quantiles,
)
from tests.toy_federation import Play


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Records whose confidence varies in mean and spread with what they look like."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, 6))
    mean = inputs @ np.array([3.0, -2.0, 0.0, 0.0, 1.0, 0.0])
    return inputs, mean + np.exp(inputs[:, 2]) * rng.normal(size=count)


def test_mean_and_spread_are_learned() -> None:
    expected = _Expected.fit(*drawn(2000, seed=0), folds=5)
    standard = expected.standardised(*drawn(2000, seed=1))
    for values in (standard, expected.held_out):
        assert abs(values.mean()) < 0.1
        assert 0.9 < values.std() < 1.1
        for share in (0.1, 0.5, 0.9):  # the quantiles of a normal distribution
            below = np.mean(
                values < np.quantile(np.random.default_rng(2).normal(size=9999), share)
            )
            assert abs(below - share) < 0.03


def test_scores_beyond_a_quantile_are_those_of_the_published_rule() -> None:
    """Bertran et al.: a member if s(x) > mu(x) + sigma(x) Phi^-1(1 - alpha).

    Here mu is 1 + 2x and sigma e^x, whose logarithm is regressed as that of a squared
    residual: 2x + E ln chi^2 with one degree of freedom, - Euler's gamma - ln 2.
    """
    assert abs(LOG_CHI_SQUARE + np.euler_gamma + np.log(2)) < 1e-12
    mean, spread = RidgeCV(), RidgeCV()
    mean.coef_, mean.intercept_ = np.array([2.0]), 1.0
    spread.coef_, spread.intercept_ = np.array([2.0]), LOG_CHI_SQUARE
    expected = _Expected(mean, spread, -50.0, 50.0, np.zeros(1))
    inputs, quantile = np.array([[0.0], [1.0], [-2.0]]), float(ndtri(0.95))
    at_it = np.array([1 + 1.6449, 3 + 1.6449 * 2.7183, -3 + 1.6449 * 0.13534])
    scores = expected.standardised(inputs, at_it)
    np.testing.assert_allclose(scores, quantile, atol=1e-3)
    for shift in (-0.01, 0.01):
        beyond = expected.standardised(inputs, at_it + shift) > quantile
        assert (beyond == (shift > 0)).all()


@pytest.mark.parametrize("learner", ["ridge", "trees"])
@pytest.mark.parametrize("leak", [2.0, 0.0])
def test_records_that_are_easy_for_all_do_not_hide_members(
    learner: str, leak: float
) -> None:
    known, (inputs, values) = drawn(1000, seed=0), drawn(1000, seed=1)
    is_member = np.random.default_rng(3).random(1000) < 0.5
    values = values + leak * np.exp(inputs[:, 2]) * is_member
    if learner == "ridge":
        scores = _Expected.fit(*known, folds=5).standardised(inputs, values)
    else:
        scores = between_quantiles(*known, inputs, values)
    found = auroc(scores[is_member], scores[~is_member])
    plain = auroc(values[is_member], values[~is_member])
    if leak:
        assert found.low > (0.85 if learner == "ridge" else 0.75) > plain.high
    else:
        assert found.low < 0.5 < found.high


def test_trees_score_a_federation(play: Play) -> None:
    scores = QuantileRegression(folds=2, learner="trees")(*play(PromptFL()).watched())
    assert all(np.isfinite(one.scores).all() for one in scores)


def test_records_that_are_sorted_by_class_are_learned_from_as_well() -> None:
    """Folds in the data set's order would lack whole classes."""
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(5, size=1000))
    inputs, values = np.eye(5)[labels], 3.0 * labels + rng.normal(size=1000)
    expected = _Expected.fit(inputs, values, folds=5)
    assert abs(expected.held_out.mean()) < 0.1
    assert 0.9 < expected.held_out.std() < 1.1
    order = rng.permutation(1000)
    mixed = _Expected.fit(inputs[order], values[order], folds=5)
    found, wanted = (one.standardised(inputs, values) for one in (expected, mixed))
    np.testing.assert_allclose(found, wanted, atol=0.1)


def test_a_model_of_one_confidence_for_all_tells_nothing() -> None:
    inputs, _ = drawn(50, seed=0)
    expected = _Expected.fit(inputs, np.ones(50), folds=5)
    np.testing.assert_allclose(expected.standardised(inputs, np.ones(50)), 0, atol=1e-6)


def test_too_few_public_records_are_refused(play: Play) -> None:
    adversary, targets = play(PromptFL(epochs=1)).watched()
    few = adversary.task.public.pick(torch.arange(10))
    poor = replace(adversary, task=replace(adversary.task, public=few))
    with pytest.raises(AttackError, match=re.escape("there are 10; it needs 20")):
        QuantileRegression()(poor, targets)
