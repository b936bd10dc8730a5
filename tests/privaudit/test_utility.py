import numpy as np
import pytest

from privaudit.utility import mean_accuracy


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


def test_clients_without_counted_records_are_left_out() -> None:
    right = np.array([[1.0, 1], [0, 0]])
    own = np.array([[True, True], [False, False]])
    assert mean_accuracy(right, own).value == 1.0
