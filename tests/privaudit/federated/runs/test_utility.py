import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.federated.runs.utility import mean_accuracy


def test_accuracies_are_averaged_over_clients_by_hand() -> None:
    """Client 0: 1 of 2 of its own, client 1: 3 of 3: (0.5 + 1) / 2."""
    right = np.array([[1.0, 0, 0, 0, 0], [0, 0, 1, 1, 1]])
    own = np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], dtype=bool)
    estimate = mean_accuracy(right, own)
    assert estimate.value == pytest.approx(0.75)
    assert estimate.n == (5,)


def test_the_interval_covers_as_often_as_it_says(rng: np.random.Generator) -> None:
    """Records are shared by clients, so that counting answers would be too sure."""
    covered = 0
    for _ in range(400):
        hard = rng.random(200) < 0.3
        right = (~hard & (rng.random((8, 200)) < 0.95)).astype(float)
        estimate = mean_accuracy(right, np.ones((8, 200), dtype=bool))
        covered += estimate.low <= 0.7 * 0.95 <= estimate.high
    assert covered / 400 > 0.92


def test_the_interval_of_sampled_clients_covers_the_mean_of_all(
    rng: np.random.Generator,
) -> None:
    """40 of 80 clients of their own skill; the mean is that of these 80, not of more."""
    covered, without = 0, 0
    for _ in range(400):
        skill = 0.4 + 0.4 * rng.beta(1, 1, 80)
        chosen = rng.permutation(80)[:40]
        easy = rng.random(150) * 0.4 + 0.8  # shared by all clients, 1 on average
        right = rng.random((40, 150)) < np.outer(skill[chosen], easy)
        weights = np.ones((40, 150), dtype=bool)
        estimate = mean_accuracy(right.astype(float), weights, fraction=0.5)
        covered += estimate.low <= skill.mean() <= estimate.high
        alone = mean_accuracy(right.astype(float), weights)
        without += alone.low <= skill.mean() <= alone.high
    assert 0.925 < covered / 400 < 0.995
    assert without / 400 < 0.9


def test_of_one_sampled_client_nobody_knows_how_others_differ() -> None:
    one = mean_accuracy(np.ones((1, 9)), np.ones((1, 9)), fraction=0.1)
    assert (one.low, one.high) == (0.0, 1.0)


def test_clients_without_counted_records_are_left_out() -> None:
    right = np.array([[1.0, 1], [0, 0]])
    own = np.array([[True, True], [False, False]])
    assert mean_accuracy(right, own).value == 1.0


def test_weights_of_any_sum_mix_records_by_hand() -> None:
    """Client 0: 3 of 4 weights are right; client 1: none of its one."""
    right = np.array([[1.0, 0, 1], [1, 0, 1]])
    weights = np.array([[2.0, 1, 1], [0, 9, 0]])
    assert mean_accuracy(right, weights).value == pytest.approx(0.375)


@given(scale=st.floats(0.01, 100), seed=st.integers(0, 20))
def test_equal_weights_are_a_mask_and_their_scale_does_not_matter(
    scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    right = (rng.random((3, 30)) < 0.7).astype(float)
    own = rng.random((3, 30)) < 0.5
    first, second = mean_accuracy(right, own), mean_accuracy(right, own * scale)
    assert first.value == pytest.approx(second.value)
    assert (first.low, first.high) == pytest.approx((second.low, second.high))


def test_the_interval_of_a_mix_covers_as_often_as_it_says(
    rng: np.random.Generator,
) -> None:
    covered, weights = 0, rng.dirichlet(np.full(20, 0.5), 8).repeat(20, axis=1)
    for _ in range(400):
        right = (rng.random((8, 400)) < 0.7).astype(float)
        estimate = mean_accuracy(right, weights)
        covered += estimate.low <= 0.7 <= estimate.high
    assert covered / 400 > 0.92


def test_no_counted_record_at_all_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="None of 3 test records counts for any of 2"):
        mean_accuracy(np.ones((2, 3)), np.zeros((2, 3)))
