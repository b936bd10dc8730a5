import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import proportion
from privaudit.statistics.roc import advantage, class_averaged_success, success_rate

TRUTH = np.array([True, True, True, False, False])
GUESSES = np.array([True, True, False, True, False])


def test_success_counts_right_guesses_of_both_kinds() -> None:
    ours, expected = success_rate(TRUTH, GUESSES), proportion(3, 5)
    assert (ours.value, ours.low, ours.high) == (0.6, expected.low, expected.high)


def test_every_class_counts_the_same() -> None:
    """Class 7: 2 of 2 right; class 9: 1 of 3; the average is 2/3, not 3/5."""
    ours = class_averaged_success(TRUTH, GUESSES, np.array([7, 7, 9, 9, 9]))
    assert ours.value == pytest.approx(2 / 3)
    assert ours.n == (5,)


@given(right=st.integers(0, 40))
def test_with_one_class_the_average_is_the_plain_rate(right: int) -> None:
    truth, guesses = np.ones(40, bool), np.arange(40) < right
    ours = class_averaged_success(truth, guesses, np.zeros(40, int))
    plain = success_rate(truth, guesses)
    assert (ours.value, ours.low, ours.high) == pytest.approx(
        (plain.value, plain.low, plain.high), abs=1e-9
    )


def test_advantage_by_hand() -> None:
    """Two of three members called, one of two non-members."""
    ours = advantage(TRUTH, GUESSES)
    assert ours.value == pytest.approx(2 / 3 - 1 / 2)
    assert ours.n == (3, 2)


@pytest.mark.parametrize("truth", [True, False])
def test_an_advantage_needs_both_classes(truth: bool) -> None:
    with pytest.raises(ConfigError, match="in 0 trials"):
        advantage(np.full(5, truth), GUESSES)


def test_guesses_for_other_candidates_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[5, 4\]"):
        success_rate(TRUTH, GUESSES[:4])
    with pytest.raises(ConfigError, match=r"\[5, 5, 3\]"):
        class_averaged_success(TRUTH, GUESSES, np.zeros(3))
    with pytest.raises(ConfigError, match=r"\[0, 0\]"):
        success_rate(TRUTH[:0], GUESSES[:0])


@pytest.mark.parametrize("sizes", [[2] * 10, [5] * 10, [20] * 10, [1, 2, 5, 10, 40]])
@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.9, 0.9), (0.5, 1.0), (1.0, 0.5)])
def test_the_class_average_is_covered(
    sizes: list[int], rates: tuple[float, float], rng: np.random.Generator
) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rate = np.linspace(*rates, len(sizes))
    covered = []
    for _ in range(400):
        right = rng.random(len(labels)) < rate[labels]
        ours = class_averaged_success(np.ones(len(labels), bool), right, labels)
        covered.append(not ours.excludes(float(rate.mean())))
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize(
    ("size", "true_rate", "false_rate"),
    [(10, 0.5, 0.5), (30, 0.1, 0.1), (100, 0.7, 0.3), (100, 0.99, 0.01)],
)
def test_advantage_is_covered(
    size: int, true_rate: float, false_rate: float, rng: np.random.Generator
) -> None:
    truth = np.arange(2 * size) < size
    rate = np.where(truth, true_rate, false_rate)
    covered = [
        not advantage(truth, rng.random(2 * size) < rate).excludes(
            true_rate - false_rate
        )
        for _ in range(600)
    ]
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 600)
