import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from privaudit.core.errors import ConfigError
from privaudit.runs.tasks import macro_f1
from privaudit.runs.utility import mean_accuracy


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


def test_macro_f1_by_hand() -> None:
    """Class 0: 2 of 2 predicted, of 3: F1 4/5; class 1: 1 of 2, of 1: 2/3."""
    found = macro_f1(np.array([[0, 0, 1, 1]]), np.array([0, 0, 0, 1]))
    assert found.value == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found.n == (4,)


@given(st.integers(0, 50))
def test_it_is_scikit_learns_over_the_classes_that_are_there(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, predicted = rng.integers(0, 4, 25), rng.integers(0, 6, (3, 25))
    expected = [
        f1_score(labels, one, labels=np.unique(labels), average="macro")
        for one in predicted
    ]
    assert macro_f1(predicted, labels).value == pytest.approx(np.mean(expected))


def test_what_is_all_right_is_one_and_what_is_all_wrong_zero() -> None:
    labels = np.arange(12) % 3
    assert macro_f1(labels[None], labels).value == 1
    assert macro_f1((labels[None] + 1) % 3, labels).value == 0
    with pytest.raises(ConfigError, match="2 models and 0 test records"):
        macro_f1(np.zeros((2, 0), int), np.zeros(0, int))


def test_the_influences_are_those_of_leaving_records_out(
    rng: np.random.Generator,
) -> None:
    """The jackknife's variance, which the linearised one approaches."""
    labels = rng.integers(0, 3, 300)
    predicted = np.where(
        rng.random((2, 300)) < 0.7, labels, rng.integers(0, 3, (2, 300))
    )
    found = macro_f1(predicted, labels)
    without = [
        macro_f1(np.delete(predicted, i, axis=1), np.delete(labels, i)).value
        for i in range(300)
    ]
    deviation = np.sqrt(np.var(without) * 299)
    assert found.high - found.low == pytest.approx(2 * 1.96 * deviation, rel=0.03)


def test_the_interval_of_f1_covers_as_often_as_it_says(
    rng: np.random.Generator,
) -> None:
    """Rare classes: shares .8, .15, .05; the truth from a million records."""

    def draw(records: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.choice(3, records, p=(0.8, 0.15, 0.05))
        hard = rng.random(records) < 0.2
        predicted = np.where(
            hard | (rng.random((2, records)) < 0.1),
            rng.integers(0, 3, (2, records)),
            labels,
        )
        return predicted, labels

    truth = macro_f1(*draw(1_000_000)).value
    found = [macro_f1(*draw(400)) for _ in range(400)]
    assert np.mean([e.low <= truth <= e.high for e in found]) > 0.92
