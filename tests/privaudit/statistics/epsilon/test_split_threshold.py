import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from privaudit.statistics.epsilon.designs import IndependentRuns
from privaudit.statistics.epsilon.split_threshold import SplitThreshold, _every_other


def high(errors: int, trials: int) -> float:
    if errors == trials:
        return 1.0
    return float(beta.ppf(0.975, errors + 1, trials - errors))


def epsilon(
    threshold: float, members: np.ndarray, others: np.ndarray, delta: float
) -> float:
    fnr = high(int((members < threshold).sum()), len(members))
    fpr = high(int((others >= threshold).sum()), len(others))
    best = max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)
    return math.log(max(best, 1e-300))


@given(
    n=st.integers(8, 60),
    levels=st.sampled_from([3, 1000]),
    shift=st.integers(0, 600),
    seed=st.integers(0, 10**6),
    delta=st.sampled_from([0.0, 0.01]),
)
def test_it_equals_a_loop_over_thresholds(
    n: int, levels: int, shift: int, seed: int, delta: float
) -> None:
    rng = np.random.default_rng(seed)
    is_member = rng.random(n) < 0.5
    scores = rng.integers(0, levels, n) + shift * levels // 1000 * is_member
    bounds = _every_other(is_member[None], 7)[0]
    chosen = [scores[is_member & ~bounds], scores[~is_member & ~bounds]]
    falling = sorted({*chosen[0].tolist(), *chosen[1].tolist()}, reverse=True)
    members, others = chosen
    best = max(falling, key=lambda t: round(epsilon(t, members, others, delta), 9))
    expected = epsilon(
        best, scores[is_member & bounds], scores[~is_member & bounds], delta
    )
    bound = SplitThreshold(split_seed=7, delta=delta)(
        IndependentRuns(scores, is_member)
    )
    assert bound.value == pytest.approx(max(expected, 0.0), abs=1e-9)


@given(coins=st.lists(st.booleans(), min_size=2, max_size=50), seed=st.integers(0, 99))
def test_each_class_is_halved(coins: list[bool], seed: int) -> None:
    is_member = np.array(coins)
    half = _every_other(is_member[None], seed)[0]
    for kind in (is_member, ~is_member):
        assert (half & kind).sum() == math.ceil(kind.sum() / 2)


def test_the_bounding_half_has_no_say_in_the_threshold() -> None:
    """Whatever its scores, the choosing half's threshold stays where it is."""
    rng = np.random.default_rng(0)
    is_member = rng.random((1, 60)) < 0.5
    scores = rng.standard_normal((1, 60)) + is_member
    half = _every_other(is_member, 0)
    method = SplitThreshold()
    before = method._choose(scores, is_member, ~half)
    scores[half] = 1e6 * rng.standard_normal(int(half.sum()))
    assert method._choose(scores, is_member, ~half) == before


def test_runs_too_few_for_two_halves_show_nothing() -> None:
    both = IndependentRuns(np.array([0.0, 1.0]), np.array([False, True]))
    assert SplitThreshold()(both).value == 0
    alone = IndependentRuns(np.array([1.0]), np.array([True]))
    assert SplitThreshold()(alone).ceiling == 0


def test_ceiling_at_a_hundred_runs() -> None:
    assert SplitThreshold().ceiling(50, 50) == pytest.approx(1.838, abs=1e-3)
