import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from privaudit.core.errors import ConfigError
from privaudit.federated.runs.tasks import macro_f1


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
