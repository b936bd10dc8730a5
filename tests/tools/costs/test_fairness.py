import numpy as np
import pytest

from privaudit_tools.costs.fairness import fairness_of


def test_means_weigh_each_clients_mixture_by_hand() -> None:
    scores = np.array([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
    mix = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 3.0, 1.0, 0.0]])
    found = fairness_of(scores, mix, "accuracy")
    assert (found.lowest, found.highest) == pytest.approx((0.5, 1.0))
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(0.5)
    assert found.ratio.n == (3,)  # the last record is nobody's


def test_one_model_on_one_mixture_does_not_vary() -> None:
    right = np.random.default_rng(0).random(300) < 0.8
    scores = np.repeat(right[None].astype(float), 5, axis=0)
    found = fairness_of(scores, np.ones((5, 300)), "accuracy")
    assert found.spread.value == found.spread.low == 0
    assert found.spread.high < 1e-4
    assert found.ratio is not None
    assert found.ratio.value == 1


@pytest.mark.parametrize(
    ("tests", "right", "says"),
    [(10, 1.0, "needs 50 "), (60, 1.0, "has all right"), (60, 0.0, "or all wrong")],
)
def test_few_records_or_all_right_or_wrong_leave_the_spread_open(
    tests: int, right: float, says: str
) -> None:
    mix = np.repeat(np.eye(2), tests, axis=1)
    found = fairness_of(np.full((2, 2 * tests), right), mix, "accuracy")
    assert says in found.spread.unresolved
    assert found.spread.value == 0
    low = found.ratio and found.ratio.low  # none where nobody has any right
    assert low == (pytest.approx((0.05 / 4) ** (1 / tests)) if right else None)


@pytest.mark.parametrize("spread", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("shared", [False, True])
def test_intervals_cover_as_often_as_they_say(spread: float, shared: bool) -> None:
    """Own models, or one for all on mixtures that differ; nominal are 95 per cent."""
    generator = np.random.default_rng(1)
    clients, tests, runs = 10, 540, 150
    share = generator.dirichlet(np.full(10, 0.3), clients)
    by_class = np.clip(0.85 + 1.5 * spread * np.linspace(-1, 1, 10), 0, 1)
    own = np.clip(0.85 + spread * np.linspace(-1.5, 1.5, clients), 0, 1)
    truth = share @ by_class if shared else own
    covered = np.zeros(2)
    for _ in range(runs):
        classes = np.arange(tests) % 10
        draws = generator.random((clients, tests))
        if shared:
            right = np.repeat(draws[:1] < by_class[classes], clients, axis=0)
        else:
            right = draws < own[:, None]
        found = fairness_of(right.astype(float), share[:, classes], "accuracy")
        assert found.ratio is not None
        ratio = truth.min() / truth.max()
        covered += (
            found.spread.low <= truth.std() <= found.spread.high,
            found.ratio.low <= ratio <= found.ratio.high,
        )
    assert (covered / runs >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / runs)).all(), covered
