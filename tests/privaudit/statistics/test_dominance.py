import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from privaudit.core.errors import ConfigError
from privaudit.statistics import dominance
from privaudit.statistics.dominance import Margins, Replicates, find_front

Means = list[tuple[float, float]]  # leak and use of each cell


def simulated(
    means: Means, rng: np.random.Generator, seeds: int = 5, spread: float = 0.02
) -> list[Replicates]:
    """Return cells whose seeds share a part of their luck, as paired runs do."""
    shared = rng.normal(0, spread, (seeds, 2))
    return [
        {
            seed: (float(leak), float(use))
            for seed, (leak, use) in enumerate(
                np.array(mean) + shared + rng.normal(0, spread, (seeds, 2))
            )
        }
        for mean in means
    ]


def share_wrong(means: Means, sweeps: int, seeds: int = 5) -> float:
    """Return in how many sweeps any cell is called dominated."""
    rng = np.random.default_rng(7)
    with patch.object(dominance, "_further", lambda *_: 0):  # slow, and asked by nobody
        found = [find_front(simulated(means, rng, seeds)) for _ in range(sweeps)]
    return float(np.mean([bool(front.dominations) for front in found]))


def at_most(alpha: float, sweeps: int) -> float:
    return alpha + 3 * math.sqrt(alpha * (1 - alpha) / sweeps)


@pytest.mark.parametrize(
    "means",
    [
        [(0.55, 0.8)] * 6,  # no differences at all
        [(0.55, 0.8), (0.60, 0.8), (0.60, 0.8)],  # exactly the margin apart in leak
        [(0.55, 0.8), (0.55, 0.75), (0.55, 0.75)],  # and in use
        [(0.90, 0.8), (0.50, 0.75), (0.50, 0.75)],  # far better, and worse by a margin
    ],
)
def test_no_cell_is_wrongly_called_dominated_in_more_than_5_percent(
    means: Means,
) -> None:
    """The hard cases lie at the margin, where tests are wrong most often."""
    sweeps = 300
    assert share_wrong(means, sweeps) <= at_most(0.05, sweeps)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(
    "means", [[(0.55, 0.8), (0.60, 0.8)], [(0.90, 0.8), (0.50, 0.75)]]
)
def test_at_the_margin_two_cells_stay_at_or_below_their_level(
    means: Means, seeds: int
) -> None:
    sweeps = 4000
    assert share_wrong(means, sweeps, seeds) <= at_most(0.05, sweeps)


def test_a_clearly_dominated_cell_is_found() -> None:
    means = [(0.75, 0.6), (0.55, 0.8), (0.55, 0.8), (0.56, 0.79)]
    rng = np.random.default_rng(3)
    fronts = [find_front(simulated(means, rng)) for _ in range(100)]
    assert np.mean([0 not in front.not_dominated for front in fronts]) > 0.9
    assert all(one.worse == 0 for front in fronts for one in front.dominations)


def test_a_trade_is_no_domination() -> None:
    """More use for more leak: neither is better."""
    means = [(0.75, 0.9), (0.55, 0.6)]
    front = find_front(simulated(means, np.random.default_rng(0), spread=0.005))
    assert front.not_dominated == (0, 1)
    assert front.undecided == (0, 0)  # each is shown to be worse in one


def test_p_values_are_students_the_larger_of_two_times_the_number_of_tests() -> None:
    """Oracle: scipy's t test. Two cells: four hypotheses."""
    rng = np.random.default_rng(1)
    ours, theirs = simulated([(0.75, 0.8), (0.55, 0.8)], rng, spread=0.01)
    (found,) = find_front([ours, theirs]).dominations
    leak = [ours[seed][0] - theirs[seed][0] for seed in ours]
    use = [theirs[seed][1] - ours[seed][1] for seed in ours]
    expected = max(
        ttest_1samp(leak, 0.05, alternative="greater").pvalue,
        ttest_1samp(use, -0.05, alternative="greater").pvalue,
    )
    assert (found.worse, found.better, found.way) == (0, 1, "leak")
    assert found.p_value == pytest.approx(4 * expected)
    assert found.leak.value == pytest.approx(np.mean(leak))


def test_two_seeds_decide_nothing_and_that_is_said() -> None:
    rng = np.random.default_rng(0)
    front = find_front(simulated([(0.9, 0.5), (0.5, 0.9)], rng, seeds=2))
    assert (front.not_dominated, front.undecided) == ((0, 1), (1, 1))


def test_equal_cells_of_little_noise_are_decided() -> None:
    same: Replicates = dict.fromkeys(range(3), (0.5, 0.8))
    front = find_front([same, same])
    assert (front.not_dominated, front.undecided) == ((0, 1), (0, 0))


def test_only_shared_seeds_count() -> None:
    leaky = {seed: (0.9 + seed / 1000, 0.8) for seed in (1, 2, 3)}
    other = dict.fromkeys((4, 5, 6), (0.5, 0.8))
    assert not find_front([leaky, other]).dominations


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(
        st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=4, max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_at_least_one_cell_is_left_and_none_dominate_in_a_circle(
    values: list[list[tuple[float, float]]],
) -> None:
    front = find_front([dict(enumerate(cell)) for cell in values], alpha=0.5)
    assert front.not_dominated
    table = np.array(values)
    worth = (table[..., 1] - table[..., 0]).mean(axis=1)  # use less leak
    assert all(worth[one.better] > worth[one.worse] for one in front.dominations)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="not between 0 and 1"):
        Margins(leak=0.0)
    with pytest.raises(ConfigError, match="finite"):
        find_front([{0: (math.nan, 0.5)}, {0: (0.5, 0.5)}])


def test_further_seeds_decide_what_three_leave_open() -> None:
    """PromptFL and DP-FPL as they differ: .621 and .516, at equal utility."""
    leaky = {1: (0.60, 0.80), 2: (0.64, 0.82), 3: (0.622, 0.79)}
    tight = {1: (0.52, 0.80), 2: (0.50, 0.79), 3: (0.528, 0.80)}
    front = find_front([leaky, tight])
    assert front.undecided[0] == 1
    assert 1 <= front.further[0] <= 20
    more = 3 + front.further[0]
    rng, decided = np.random.default_rng(3), 0
    spread = np.array([list(leaky.values()), list(tight.values())])
    error = (spread[0] - spread[1]).std(axis=0, ddof=1)
    mean = (spread[0] - spread[1]).mean(axis=0)
    for _ in range(200):
        moved = mean + error * rng.normal(size=(more, 2))
        first = {n: (0.5 + leak, 0.8 + use) for n, (leak, use) in enumerate(moved)}
        second = dict.fromkeys(first, (0.5, 0.8))
        decided += not find_front([first, second]).undecided[0]
    assert decided / 200 > 0.8 - 4 * math.sqrt(0.16 / 200)


def test_nothing_is_said_of_further_seeds_where_two_or_none_are_open() -> None:
    two = {1: (0.6, 0.8), 2: (0.62, 0.8)}
    assert find_front([two, two]).further == (0, 0)
    leaky = {n: (0.8 + 0.001 * n, 0.8) for n in range(5)}
    tight = {n: (0.5, 0.8 + 0.001 * n) for n in range(5)}
    assert find_front([leaky, tight]).further == (0, 0)
