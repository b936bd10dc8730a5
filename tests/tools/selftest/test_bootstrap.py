from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from privaudit.core.errors import ConfigError
from privaudit.statistics.roc import auroc
from privaudit_tools.selftest.bootstrap import Interval, Resampling, bootstrap_auroc


def _drawn(seed: int, levels: int) -> tuple[Resampling, np.ndarray, np.ndarray]:
    """Return scores, tied where levels are few, and counts of three resamples."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 25, 2)
    members, others = (rng.integers(levels, size=size).astype(float) for size in sizes)
    resampling = Resampling.of(members, others)
    first, second = (
        rng.multinomial(size, np.ones(size) / size, size=3) for size in sizes
    )
    return resampling, first, second


def _naive_auroc(members: np.ndarray, others: np.ndarray) -> Fraction:
    wins = (members[:, None] > others).sum() + Fraction(
        int((members[:, None] == others).sum()), 2
    )
    return wins / (len(members) * len(others))


@given(seed=st.integers(0, 2**32 - 1), levels=st.sampled_from([2, 5, 10**6]))
def test_each_replicate_is_its_resamples_auroc_to_the_last_bit(
    seed: int, levels: int
) -> None:
    resampling, members, others = _drawn(seed, levels)
    ours = resampling.aurocs(members, others)
    for found, m, o in zip(ours, members, others, strict=True):
        resample = np.repeat(resampling.members, m), np.repeat(resampling.others, o)
        assert found == float(_naive_auroc(*resample))
        truth = np.repeat([1, 0], [len(part) for part in resample])
        sklearns = roc_auc_score(truth, np.concatenate(resample))
        assert found == pytest.approx(sklearns, abs=1e-12)


def test_resamples_draw_as_many_as_there_are_whatever_the_chunks(
    rng: np.random.Generator,
) -> None:
    resampling = Resampling.of(rng.normal(size=20_000), rng.normal(size=10_000))
    parts = list(resampling.draws(rng, 20))
    assert len(parts) > 1
    assert sum(len(members) for members, _ in parts) == 20
    for members, others in parts:
        assert (members.sum(axis=1) == 20_000).all()
        assert (others.sum(axis=1) == 10_000).all()


def test_the_replicates_spread_as_delong_says(rng: np.random.Generator) -> None:
    members, others = rng.normal(size=300) + 0.5, rng.normal(size=200)
    ours = bootstrap_auroc(members, others, rng, replicates=4000)
    delong = auroc(members, others)
    assert ours.value == delong.value
    assert ours.n == (300, 200)
    assert ours.low == pytest.approx(delong.low, abs=0.006)
    assert ours.high == pytest.approx(delong.high, abs=0.006)


@pytest.mark.parametrize("interval", get_args(Interval))
def test_a_perfect_attack_gets_the_exact_interval(interval: Interval) -> None:
    """Every resample is perfect, so resampling alone would be sure of it."""
    rng = np.random.default_rng(0)
    ours = bootstrap_auroc(np.ones(30), np.zeros(40), rng, interval=interval)
    assert (ours.value, ours.high) == (1, 1)
    assert ours.low**30 == pytest.approx(0.025)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_interval_holds_its_value_however_few_the_records(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, 2)
    members, others = (rng.integers(3, size=size).astype(float) for size in sizes)
    ours = bootstrap_auroc(members, others, rng, replicates=100)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1


@pytest.mark.parametrize("true_auroc", [0.6, 0.9])
def test_the_interval_covers_a_true_leak(
    true_auroc: float, rng: np.random.Generator
) -> None:
    shift = np.sqrt(2) * norm.ppf(true_auroc)
    covered = [
        not bootstrap_auroc(
            rng.normal(size=60) + shift, rng.normal(size=60), rng, replicates=400
        ).excludes(true_auroc)
        for _ in range(400)
    ]
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)


def test_few_replicates_are_refused(rng: np.random.Generator) -> None:
    with pytest.raises(ConfigError, match="99 bootstrap replicates"):
        bootstrap_auroc(np.ones(5), np.zeros(5), rng, replicates=99)


@given(seed=st.integers(0, 2**32 - 1), levels=st.sampled_from([2, 5, 10**6]))
def test_swapping_the_labels_mirrors_each_replicate(seed: int, levels: int) -> None:
    resampling, members, others = _drawn(seed, levels)
    swapped = Resampling(resampling.others, resampling.members)
    np.testing.assert_allclose(
        swapped.aurocs(others, members),
        1 - resampling.aurocs(members, others),
        atol=1e-12,
    )


@given(seed=st.integers(0, 2**32 - 1))
def test_only_the_order_of_scores_moves_an_interval(seed: int) -> None:
    members, others = np.random.default_rng(seed).integers(9, size=(2, 12)) * 1.0
    plain, bent = (
        bootstrap_auroc(*scores, np.random.default_rng(0), replicates=100)
        for scores in ((members, others), (np.exp(members), np.exp(others)))
    )
    assert plain == bent
