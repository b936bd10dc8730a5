import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from privaudit.core.errors import ConfigError
from privaudit_tools.equal_utility.curve import (
    Measured,
    contrasts,
    isotonic,
    p_above_zero,
    p_of_zero,
    standing,
)

SEEDS = range(1, 5)


def of(utility: float, leak: float) -> Measured:
    return Measured(dict.fromkeys(SEEDS, utility), dict.fromkeys(SEEDS, leak))


def test_a_distance_by_hand() -> None:
    """Half way from 0.8 to 0.9 the curve is half way from 0.5 to 0.7: 0.6."""
    found = standing(of(0.85, 0.52), of(0.8, 0.5), [of(0.9, 0.7)])
    assert found.distance.value == pytest.approx(0.08)
    assert found.where == "inside"
    assert (found.p, found.p_useful) == (0.0, 0.0)  # equal in all seeds


def test_a_stop_of_the_curve_is_on_it_in_every_seed() -> None:
    generator = np.random.default_rng(0)
    knots = generator.normal((0.8, 0.85, 0.9), 0.005, (6, 3)).clip(0, 1)
    leaks = generator.normal((0.5, 0.6, 0.7), 0.01, (6, 3))
    for knot in (1, 2):
        found, _ = contrasts(knots, leaks, knots[:, knot], leaks[:, knot])
        assert np.abs(found).max() < 1e-12


def test_beyond_its_ends_the_curve_stays_as_it_is() -> None:
    untrained, stops = of(0.8, 0.5), [of(0.9, 0.7)]
    above = standing(of(0.95, 0.72), untrained, stops)
    assert above.where == "above"
    assert above.distance.value == pytest.approx(-0.02)
    below = standing(of(0.7, 0.45), untrained, stops)
    assert below.where == "below"
    assert below.distance.value == pytest.approx(0.05)
    assert below.p_useful == 1.0


def test_seeds_are_paired_and_three_are_needed() -> None:
    """What differs between seeds, and not from the curve, is no spread."""
    moves = {seed: 0.01 * seed for seed in SEEDS}
    untrained = Measured(
        {s: 0.8 + m for s, m in moves.items()}, dict.fromkeys(SEEDS, 0.5)
    )
    stop = Measured(
        {s: 0.9 + m for s, m in moves.items()}, {s: 0.7 + m for s, m in moves.items()}
    )
    method = Measured(
        {s: 0.9 + m for s, m in moves.items()}, {s: 0.6 + m for s, m in moves.items()}
    )
    found = standing(method, untrained, [stop])
    assert found.distance.high - found.distance.low == pytest.approx(0, abs=1e-9)
    few = Measured({1: 0.9, 2: 0.9}, {1: 0.5, 2: 0.5})
    with pytest.raises(ConfigError, match=r"takes 3 seeds .* there are 2"):
        standing(few, untrained, [stop])


def simulated(distance: float, seeds: int = 6, times: int = 1500) -> list[float]:
    """Return p-values of methods so far below a curve of three stops."""
    generator = np.random.default_rng(7)
    found = []
    for _ in range(times):
        knots = generator.normal((0.80, 0.84, 0.88, 0.92), 0.004, (seeds, 4))
        leaks = np.c_[
            np.full(seeds, 0.5), generator.normal((0.58, 0.64, 0.70), 0.01, (seeds, 3))
        ]
        utility = generator.normal(0.86, 0.004, seeds)
        leak = generator.normal(0.61 - distance, 0.01, seeds)
        found.append(p_of_zero(contrasts(knots, leaks, utility, leak)[0]))
    return found


def test_what_is_on_the_curve_is_called_off_it_as_often_as_alpha_says() -> None:
    """0.05 with a standard error of 0.0056 at 1,500: below 0.05 + 4 of them."""
    assert np.mean(np.array(simulated(0.0)) < 0.05) < 0.05 + 4 * 0.0056


def test_what_is_far_below_the_curve_is_found() -> None:
    assert np.mean(np.array(simulated(0.06)) < 0.05) > 0.95


def test_isotonic_is_that_of_sklearn() -> None:
    generator = np.random.default_rng(1)
    for _ in range(50):
        values = generator.normal(size=7).round(1)
        theirs = IsotonicRegression().fit_transform(np.arange(7), values)
        np.testing.assert_allclose(isotonic(values) @ values, theirs, atol=1e-12)


def test_p_values_are_students() -> None:
    from scipy.stats import ttest_1samp

    values = np.array([0.3, -0.1, 0.4, 0.2])
    assert p_of_zero(values) == pytest.approx(ttest_1samp(values, 0).pvalue)
    above = ttest_1samp(values, 0, alternative="greater").pvalue
    assert p_above_zero(values) == pytest.approx(above)
