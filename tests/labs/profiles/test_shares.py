import numpy as np
import pytest

from privaudit_labs.profiles.shares import (
    InferredShare,
    InferredShares,
    calibrated_share,
    estimated_usage,
)


def signals(
    share: float, effect: float, seed: int, models: int = 40, records: int = 60
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A target, its shadows, who was trained on what, and the truth."""
    rng = np.random.default_rng(seed)
    pairs = rng.random((models // 2, records)) < 0.5
    is_in = np.stack([pairs, ~pairs], axis=1).reshape(models, records)
    truth = rng.random(records) < share
    ease = rng.normal(size=records)
    shadows = ease + effect * is_in + rng.normal(size=is_in.shape)
    target = ease + effect * truth + rng.normal(size=records)
    return target, shadows, is_in, truth


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_model_that_tells_all_tells_how_much_it_was_trained_on(share: float) -> None:
    target, shadows, is_in, truth = signals(share, effect=50.0, seed=1)
    found = estimated_usage(target, shadows, is_in)
    assert found.value == pytest.approx(truth.mean())
    assert found.high - found.low < 1e-9


def test_a_model_that_tells_nothing_leaves_every_share_possible() -> None:
    for seed in range(20):
        target, shadows, is_in, _ = signals(1.0, effect=0.0, seed=seed)
        found = estimated_usage(target, shadows, is_in)
        assert found.low < 0.05
        assert found.high > 0.95


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_intervals_hold_the_share_as_often_as_they_say(share: float) -> None:
    """Of 200, at least 95 % less three standard errors; they are no whole line."""
    drawn = [signals(share, effect=1.5, seed=seed) for seed in range(200)]
    found = [(estimated_usage(*d[:3]), d[3].mean()) for d in drawn]
    missed = np.mean([one.excludes(float(truth)) for one, truth in found])
    assert missed < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean([one.high - one.low for one, _ in found]) < 0.5


def test_guesses_are_debiased_by_hand() -> None:
    """Of two groups of records, only the first tells members; half of guesses are."""
    is_in = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=bool)
    shadows = np.where(is_in, 1.0, 0.0)
    found = estimated_usage(np.array([1.0, 0.0]), shadows, is_in)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)
    both = estimated_usage(np.array([1.0, 1.0]), shadows, is_in)
    assert both.value == 1.0


def test_a_share_is_freed_of_both_error_rates_by_hand() -> None:
    """Tong et al.: (guessed - FPR) / (TPR - FPR) = (5/8 - 1/4) / (3/4 - 1/4) = 3/4.

    Of four shadows with a record one looks as those without, and of four without one
    as those with; each is guessed by the other seven.
    """
    is_in = np.repeat([[True], [False]], 4, axis=0).repeat(8, axis=1)
    shadows = np.array([1.0, 1, 1, 0, 0, 0, 0, 1])[:, None].repeat(8, axis=1)
    target = np.array([1.0, 1, 1, 1, 1, 0, 0, 0])
    assert estimated_usage(target, shadows, is_in).value == pytest.approx(0.75)


@pytest.mark.parametrize("actual", [0.0, 0.1, 0.5, 1.0])
def test_a_share_unlike_those_of_shadows_is_held_as_often_as_any(actual: float) -> None:
    """Estimates are drawn to the mean by half, and shadows seldom have half of a class.

    Of 400, at least 95 % less three standard errors.
    """
    rng, missed, widths = np.random.default_rng(0), 0, []
    for _ in range(400):
        shares = rng.dirichlet(np.ones(5), size=16)[:, 0]
        estimates = 0.1 + 0.5 * np.append(shares, actual) + 0.03 * rng.normal(size=17)
        found = calibrated_share(float(estimates[-1]), estimates[:-1], shares)
        missed += not found.low - 1e-9 <= actual <= found.high + 1e-9
        widths.append(found.high - found.low)
    assert missed / 400 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert np.mean(widths) < 0.5


def test_estimates_that_do_not_go_with_shares_leave_every_share_possible() -> None:
    rng = np.random.default_rng(0)
    shares, estimates = rng.random((2, 16))
    assert calibrated_share(0.5, estimates, shares).high == 1
    assert calibrated_share(0.5, estimates, shares).low == 0
    none = calibrated_share(-1.0, estimates, np.zeros(16))
    assert (none.value, none.low, none.high) == (0, 0, 1)


def test_estimates_that_tell_all_leave_one_share_possible() -> None:
    shares = np.linspace(0, 0.6, 7)
    found = calibrated_share(0.9, shares, shares)
    assert found.low == pytest.approx(0.9, abs=0.002)
    assert found.high == pytest.approx(0.9, abs=0.002)
    assert calibrated_share(7.0, shares, shares).low == pytest.approx(1, abs=0.002)


def test_what_is_gained_is_by_client() -> None:
    right = calibrated_share(0.9, np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.5, 1.0]))
    shares = {
        client: {"a": InferredShare(right, actual)}
        for client, actual in (("ann", 0.9), ("bob", 0.8))
    }
    found = InferredShares.of(shares, {"a": 0.5})
    assert found.error.value == pytest.approx(0.05)
    assert found.error_of_prior.value == pytest.approx(0.35)
    assert found.gain.value == pytest.approx(0.3)
    assert found.gain.n == (2,)
