"""The bounds of grid_accounting, against exact chances at small scales."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import ndtr

from privaudit.core.errors import ConfigError
from privaudit.privacy.accountant import gaussian_epsilon, noise_multiplier_for
from privaudit.privacy.certificate import certify, effective_noise
from privaudit.privacy.discrete_gaussian import SUMMED, Grid
from privaudit.privacy.grid_accounting import (
    discrete_epsilon,
    rounded_noise,
    spread,
    widened_noise,
)
from tests.privaudit.privacy.test_certificate import SHARED

DELTA = 1e-5
EVENT = replace(SHARED, noise_multiplier=8.0, noise_at="distributed")


def discrete(scale: int | float, reach: int) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * scale**2))
    return weights / weights.sum()


def delta_of(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """Return the hockey-stick divergence of two distributions on the same integers."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("scale", [1, 2, 5, 40])
def test_log_ratios_to_the_rounded_gaussian_are_within_the_derived_bounds(
    scale: int,
) -> None:
    reach = 8 * scale
    k = np.arange(-reach, reach + 1)
    rounded = ndtr((k + 0.5) / scale) - ndtr((k - 0.5) / scale)
    # Above the mean, differences of upper tails: those of lower ones lose digits.
    rounded = np.where(
        k > 0, ndtr(-(k - 0.5) / scale) - ndtr(-(k + 0.5) / scale), rounded
    )
    ratio = np.log(rounded / discrete(scale, 60 * scale)[60 * scale + k])
    slack = spread(scale, 1) + 1e-12
    assert (ratio >= -1 / (24 * scale**2) - slack).all()
    assert (ratio <= k**2 / (24 * scale**4) + slack).all()
    # The bounds are no guesses: they are met to within a twentieth at both ends.
    assert ratio.min() < -0.95 / (24 * scale**2)
    if scale >= 5:
        assert ratio.max() > 0.9 * (reach**2 / scale**2 - 1) / (24 * scale**2)


@pytest.mark.parametrize(("scale", "parties"), [(1, 2), (1, 5), (2, 3), (3, 10)])
def test_a_sum_of_parties_is_a_discrete_gaussian_within_the_spread(
    scale: int, parties: int
) -> None:
    """Exact convolution, where the chances are large enough for float64."""
    one = discrete(scale, 30 * scale)
    total = one
    for _ in range(parties - 1):
        total = np.convolve(total, one)
    middle, near = len(total) // 2, 4 * scale
    whole = discrete(scale * math.sqrt(parties), middle)
    close = slice(middle - near, middle + near + 1)
    ratio = np.log(total[close] / whole[close])
    assert np.abs(ratio).max() <= spread(scale, parties) + 1e-12


def test_the_spread_vanishes_from_a_few_steps_on() -> None:
    assert spread(1, 2) > 1e-4
    assert spread(9, 10**6) < 1e-300


@pytest.mark.parametrize("scale", [2, 4, 10, 40])
@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_epsilon_holds_for_the_exact_chances_in_one_dimension(
    scale: int, mu: float
) -> None:
    shift = max(1, round(mu * scale))
    centre = discrete(scale, 60 * scale)
    p, q = np.append(centre, np.zeros(shift)), np.append(np.zeros(shift), centre)
    bound = discrete_epsilon(
        lambda delta: gaussian_epsilon(shift / scale, delta),
        DELTA,
        values=1,
        scale=scale,
    )
    assert delta_of(p, q, bound) <= DELTA
    assert delta_of(p, q, gaussian_epsilon(shift / scale, DELTA) - 1.0) > DELTA


@pytest.mark.parametrize(("scale", "steps"), [(8, 10), (30, 1), (30, 20)])
def test_the_epsilon_is_above_dp_accountings_for_composed_steps(
    scale: int, steps: int
) -> None:
    loss = privacy_loss_distribution.from_discrete_gaussian_mechanism(
        scale, sensitivity=scale // 2, value_discretization_interval=1e-4
    )
    theirs = loss.self_compose(steps).get_epsilon_for_delta(DELTA)
    mu = math.sqrt(steps) * (scale // 2) / scale
    ours = discrete_epsilon(
        lambda delta: gaussian_epsilon(mu, delta), DELTA, values=steps, scale=scale
    )
    assert theirs - 0.001 * steps <= ours <= theirs + 0.1


def test_many_coordinates_are_covered_by_exact_chances() -> None:
    """Two numbers: the whole grid of outcomes, summed up."""
    scale, shift = 3, 2
    one = discrete(scale, 30)
    p, q = np.append(one, np.zeros(shift)), np.append(np.zeros(shift), one)
    p, q = np.multiply.outer(p, p), np.multiply.outer(q, q)
    mu = math.sqrt(2) * shift / scale
    bound = discrete_epsilon(
        lambda delta: gaussian_epsilon(mu, delta), DELTA, values=2, scale=scale
    )
    assert delta_of(p, q, bound) <= DELTA


def test_rounding_and_widening_are_each_others_inverse() -> None:
    for noise in (0.1, 1.0, 40.0):
        wide = widened_noise(noise, 8192, SUMMED)
        assert noise < wide < 1.05 * noise
        assert rounded_noise(wide, 8192, SUMMED) == pytest.approx(noise)
    assert widened_noise(1e6, 8192, SUMMED) == math.inf


def test_rounding_to_the_nearest_step_counts_and_toward_zero_does_not() -> None:
    grid = Grid.of(4.0, reach=0.0)
    near = EVENT.on(grid, 10_000)
    assert near.kind == "discrete-gaussian"
    assert near.scale == grid.scale >= SUMMED
    plain = effective_noise(EVENT, "server-aggregate")
    moved = effective_noise(near, "server-aggregate")
    # 100 steps of 4 / scale more than a clip norm of 1, under noise of 8.
    assert moved == pytest.approx(8 / (1 + 100 * grid.step), rel=1e-12)
    short = EVENT.on(grid, 10_000, "toward-zero")
    assert effective_noise(short, "server-aggregate") == plain


def test_a_grid_makes_a_certificate_higher_by_what_is_derived() -> None:
    coarse = EVENT.on(Grid(2.0**-4, 64), 1000, "toward-zero")
    plain = certify([[EVENT]] * 10, "server-aggregate", DELTA)
    gridded = certify([[coarse]] * 10, "server-aggregate", DELTA)
    assert plain.epsilon is not None
    assert gridded.epsilon is not None
    most = 10 * 1000 * 2 / (24 * 64**2)
    assert 0.9 * most < gridded.epsilon - plain.epsilon < 1.2 * most
    assert "discrete Gaussian noise on a grid, 64 steps" in gridded.mechanism
    assert "floating point" in plain.mechanism


def test_calibrated_noise_on_a_grid_costs_no_more_than_was_asked_for() -> None:
    """A thousandth is left for it: enough for millions of numbers, rounded or not."""
    for epsilon, rate, rounds in ((0.2, 1.0, 20), (8.0, 0.3, 60), (60.0, 0.3, 20)):
        noise = noise_multiplier_for(epsilon, DELTA, rate, rounds)
        event = replace(
            EVENT, release="upload", noise_multiplier=noise, sampling_rate=rate,
            noise_at="client",
        )  # fmt: skip
        for one in (
            event.on(Grid.of(noise), 1_000_000),
            event.on(Grid.of(noise, reach=0.0), 1_000_000, "toward-zero"),
        ):
            proved = certify([[one]] * rounds, "server", DELTA).epsilon
            assert proved is not None
            assert 0.98 * epsilon < proved <= epsilon


def test_a_discrete_event_without_its_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="values = 0"):
        replace(EVENT, kind="discrete-gaussian")
    with pytest.raises(ConfigError, match="scale = 0"):
        replace(EVENT, kind="discrete-gaussian", values=3)
    assert EVENT.on(None, 5) is EVENT
