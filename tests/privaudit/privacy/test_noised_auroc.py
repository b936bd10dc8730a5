import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.seeds import Stream
from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.privacy.noised_auroc import DELTA, MU, RankQuery, epsilon_of, interval
from privaudit.statistics.roc import pooled_auroc


def asked(sizes: tuple[int, ...], scores: np.ndarray) -> RankQuery:
    ends = np.cumsum(sizes)[:-1]
    return RankQuery.of(np.split(np.arange(len(scores)), ends), np.split(scores, ends))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 5, 1000]),
)
def test_no_coin_moves_the_sum_by_more_than_its_sensitivity(
    sizes: list[int], seed: int, levels: int
) -> None:
    """Brute force: every record of every design is flipped, with ties and without."""
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    query = asked(tuple(sizes), rng.integers(0, levels, count).astype(float))
    coins = rng.random(count) < 0.5
    before = query.exact(coins)
    for record in range(count):
        flipped = coins.copy()
        flipped[record] ^= True
        assert abs(query.exact(flipped) - before) <= query.sensitivity


def test_a_record_of_two_clients_counts_twice() -> None:
    both = RankQuery.of([np.arange(4), np.arange(3)], [np.arange(4.0), np.arange(3.0)])
    assert both.sensitivity == 3 + 2


def test_the_sensitivity_is_reached() -> None:
    query = asked((5,), np.arange(5.0))
    assert query.exact(np.arange(5) == 4) - query.exact(np.zeros(5, bool)) == 4


def test_without_noise_it_is_the_auroc_but_for_the_number_of_pairs(
    rng: np.random.Generator,
) -> None:
    """By hand: 1/2 + (A - 1/2) of m n pairs in place of N (N - 1) / 4."""
    scores, coins = rng.normal(size=60), rng.random(60) < 0.5
    scores[coins] += 1
    query = asked((40, 20), scores)
    parts = [(scores[part], coins[part]) for part in (slice(40), slice(40, 60))]
    pairs = [(s[x], s[~x]) for s, x in parts]
    found = sum(len(a) * len(b) for a, b in pairs) * (pooled_auroc(pairs).value - 0.5)
    expected = 0.5 + found / ((40 * 39 + 20 * 19) / 4)
    assert query.auroc(query.exact(coins) * query.fine) == round(expected, 4)


def test_over_coins_the_mean_is_a_half_and_the_sd_is_the_null_s(
    rng: np.random.Generator,
) -> None:
    query = asked((30, 12), rng.normal(size=42))
    sums = [query.exact(rng.random(42) < 0.5) / query.pairs for _ in range(4000)]
    assert abs(np.mean(sums)) < 4 * query.null_sd / math.sqrt(4000)
    assert abs(np.std(sums) / query.null_sd - 1) < 4 / math.sqrt(2 * 4000)


def test_noise_is_the_same_each_time_and_another_for_another_question(
    rng: np.random.Generator,
) -> None:
    query = asked((50,), rng.normal(size=50))
    other = asked((50,), rng.permutation(50).astype(float))
    coins = rng.random(50) < 0.5
    draws = [
        one.noised(coins, Stream.of(bytes(32), one.digest))
        - one.exact(coins) * one.fine
        for one in (query, query, other)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_noise_has_its_standard_deviation(rng: np.random.Generator) -> None:
    query = asked((7, 5), rng.normal(size=12))
    coins = rng.random(12) < 0.5
    exact = query.exact(coins) * query.fine
    draws = [
        query.noised(coins, Stream.of(bytes(32), str(n))) - exact for n in range(2000)
    ]
    assert abs(np.std(draws) / query.scale - 1) < 4 / math.sqrt(2 * 2000)
    assert query.sensitivity * query.fine / query.scale <= MU


def test_three_numbers_have_an_epsilon_of_two() -> None:
    costs = [epsilon_of(count) for count in range(5)]
    assert all(a < b for a, b in pairwise(costs))
    assert 1.99 < costs[3] <= 2.0 < costs[4]
    plain = gaussian_epsilon(MU * math.sqrt(3), DELTA)
    assert plain <= costs[3] < plain + 1e-3


@given(st.floats(0, 1), st.floats(1e-4, 4), st.floats(1e-4, 0.8), st.floats(0.6, 0.999))
def test_an_interval_holds_its_value(
    value: float, noise: float, null: float, confidence: float
) -> None:
    low, high = interval(value, noise, null, confidence)
    assert 0 <= low <= value <= high <= 1


@pytest.mark.parametrize("distance", [0.0, 0.7, 3.0])
def test_intervals_cover_what_the_scores_are_worth(
    distance: float, rng: np.random.Generator
) -> None:
    """Of 800, as many as 95 % less four standard errors: 92 %."""
    from scipy.special import ndtr

    truth, covered = float(ndtr(distance / math.sqrt(2))), 0
    for _ in range(800):
        coins = rng.random(90) < 0.5
        query = asked((40, 30, 20), rng.normal(size=90) + distance * coins)
        noised = query.exact(coins) * query.fine + rng.normal() * query.scale
        value = query.auroc(round(noised))
        low, high = interval(value, query.noise_sd, query.null_sd, 0.95)
        covered += low <= truth <= high
    assert covered / 800 > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 800)
