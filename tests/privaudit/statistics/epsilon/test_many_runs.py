import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom

from privaudit.statistics.epsilon.bound import IndependentRuns
from privaudit.statistics.epsilon.many_runs import (
    MultiSplit,
    SplitThreshold,
    _every_other,
    ceiling_from_errors,
    epsilon_from_errors,
    epsilon_from_rates,
    errors_at,
    highest_error_rates,
)
from privaudit_tools.selftest.calibration import GaussianCanaries
from privaudit_tools.selftest.fixed_grid import FixedGrid
from tests.golden import golden
from tests.privaudit.statistics.epsilon.test_one_run import golden_scores


def test_the_highest_rate_leaves_the_tail_to_fewer_errors() -> None:
    errors, trials = np.array([[0, 3, 10], [0, 7, 20]]), np.array([10, 20])
    high = highest_error_rates(errors, trials, 0.025)
    assert high[0, 2] == high[1, 2] == 1
    tails = binom.cdf(errors[:, :2], trials[:, None], high[:, :2])
    assert tails == pytest.approx(np.full((2, 2), 0.025))


def test_without_a_trial_nothing_is_known() -> None:
    none = np.zeros((1, 1), int)
    assert highest_error_rates(none, np.array([0]), 0.025)[0, 0] == 1
    assert ceiling_from_errors(0, 50, 0.05, 0.0) == 0


def test_ceilings_by_hand() -> None:
    """No error among 50: the rate is below q = 1 - .025^(1/50), and (1 - q) / q."""
    rate = 1 - 0.025 ** (1 / 50)
    assert ceiling_from_errors(50, 50, 0.05, 0.0) == pytest.approx(
        math.log((1 - rate) / rate)
    )
    assert round(ceiling_from_errors(50, 50, 0.05, 0.0), 2) == 2.57
    assert round(ceiling_from_errors(25, 25, 0.05, 0.0), 2) == 1.84


def test_a_quarter_of_the_error_for_each_of_four_rates_costs_what_is_said() -> None:
    """If each direction had rates of its own: about 2.4, and by split 1.7."""
    assert round(ceiling_from_errors(50, 50, 0.025, 0.0), 1) == 2.4
    assert round(ceiling_from_errors(25, 25, 0.025, 0.0), 1) == 1.7


def test_epsilon_from_rates_by_hand() -> None:
    fpr, fnr = np.array([0.1]), np.array([0.3])
    assert epsilon_from_rates(fpr, fnr, 0.0)[0] == pytest.approx(math.log(7))
    assert epsilon_from_rates(fnr, fpr, 0.0)[0] == pytest.approx(math.log(7))
    assert epsilon_from_rates(fpr, fnr, 0.2)[0] == pytest.approx(math.log(5))
    assert epsilon_from_rates(np.ones(1), np.ones(1), 0.0)[0] < 0


def test_scores_at_the_threshold_are_called_members() -> None:
    scores, is_member = np.array([[0.0, 1.0, 1.0, 2.0]]), np.array([[1, 1, 0, 0]]) == 1
    everyone = np.ones_like(is_member)
    misses, alarms = errors_at(np.array([[1.0, 1.5]]), scores, is_member, everyone)
    assert misses.tolist() == [[1, 2]]
    assert alarms.tolist() == [[2, 1]]
    none = errors_at(np.array([[1.0]]), scores, is_member, ~everyone)
    assert none[0].tolist() == none[1].tolist() == [[0]]


@given(fpr=st.floats(0.01, 0.99), fnr=st.floats(0.01, 0.99), seed=st.integers(0, 10**6))
def test_both_rates_hold_together(fpr: float, fnr: float, seed: int) -> None:
    """One binomial draw of each: bounds fail together in at most 5 %, both counted."""
    rng, n = np.random.default_rng(seed), np.full(2000, 40)
    misses, alarms = rng.binomial(40, [[fnr], [fpr]], (2, 2000))[:, :, None]
    bound = epsilon_from_errors(misses, alarms, n, n, significance=0.05, delta=0.0)
    truth = epsilon_from_rates(np.array([fpr]), np.array([fnr]), 0.0)[0]
    assert np.mean(bound > truth) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


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
    single = SplitThreshold().ceiling(50, 50)
    assert perfect.ceiling < single == pytest.approx(1.838, abs=1e-3)
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


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize(
    ("thresholds", "bound"),
    [("explicit_threshold", "explicit"), ("hull_thresholds", "bonferroni")],
)
def test_thresholds_given_beforehand_equal_the_golden_bound_and_correction(
    case: int, thresholds: str, bound: str
) -> None:
    """Several of them are there the corners of the ROC curve that is judged with them.

    The numbers agree, the procedures do not: those thresholds are no grid fixed in
    advance, so we have no function that would take them.
    """
    known = golden("audit_bounds") | golden("audit_bounds", f"c{case}_")
    runs = IndependentRuns(*golden_scores(known))
    grid = tuple(np.atleast_1d(known[thresholds]).tolist())
    ours = [
        [
            FixedGrid(thresholds=grid, confidence=1 - a, delta=d)(runs).value
            for d in known["delta_cp"].tolist()
        ]
        for a in known["significance"].tolist()
    ]
    assert np.array(ours) == pytest.approx(known[f"cp_{bound}_twosided"], abs=1e-6)


@given(seed=st.integers(0, 10**6), shift=st.floats(0, 5), delta=st.floats(0, 0.1))
def test_swapping_the_classes_and_the_direction_changes_nothing(
    seed: int, shift: float, delta: float
) -> None:
    rng = np.random.default_rng(seed)
    is_member = rng.random(60) < 0.5
    scores = rng.standard_normal(60) + shift * is_member
    ours = FixedGrid(thresholds=(0.0, 1.0), delta=delta)
    mirrored = FixedGrid(thresholds=(0.0, -1.0), delta=delta)
    assert ours(IndependentRuns(scores, is_member)).value == pytest.approx(
        mirrored(IndependentRuns(-scores, ~is_member)).value
    )


def test_every_threshold_costs() -> None:
    runs = IndependentRuns(np.arange(100.0), np.arange(100) >= 50)
    values = [FixedGrid(thresholds=(50.0,) * count)(runs).value for count in (1, 2, 20)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3


def test_a_grid_without_thresholds_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        FixedGrid(thresholds=())
