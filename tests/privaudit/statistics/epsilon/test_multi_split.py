import numpy as np
import pytest

from privaudit.statistics.epsilon.designs import IndependentRuns
from privaudit.statistics.epsilon.multi_split import MultiSplit
from privaudit.statistics.epsilon.simulated_mechanisms import GaussianCanaries
from privaudit.statistics.epsilon.split_threshold import SplitThreshold


def test_it_is_the_median_of_splits_at_half_the_significance() -> None:
    rng = np.random.default_rng(0)
    is_member = rng.random((4, 400)) < 0.5
    scores = GaussianCanaries(8.0).score(is_member, rng)
    single = [
        SplitThreshold(confidence=0.975, split_seed=seed).values(scores, is_member)
        for seed in (7, 8, 9)
    ]
    found = MultiSplit(splits=3, split_seed=7).values(scores, is_member)
    np.testing.assert_allclose(found, np.sort(single, axis=0)[1])
    assert found.all()


def test_perfect_scores_reach_the_ceiling_and_equal_ones_show_nothing() -> None:
    is_member = np.arange(100) % 2 == 0
    perfect = MultiSplit(splits=5)(IndependentRuns(is_member * 1.0, is_member))
    assert perfect.value == pytest.approx(perfect.ceiling)
    assert perfect.ceiling < SplitThreshold().ceiling(50, 50)
    assert MultiSplit()(IndependentRuns(np.ones(100), is_member)).value == 0


def test_bounds_of_other_seeds_agree_better_than_those_of_one_split() -> None:
    rng = np.random.default_rng(1)
    is_member = rng.random((1, 600)) < 0.5
    scores = GaussianCanaries(8.0).score(is_member, rng)
    one, many = (
        [make(s).values(scores, is_member)[0] for s in range(0, 400, 20)]
        for make in (
            lambda seed: SplitThreshold(split_seed=seed),
            lambda seed: MultiSplit(splits=19, split_seed=seed),
        )
    )
    assert np.std(many) < np.std(one) / 2
