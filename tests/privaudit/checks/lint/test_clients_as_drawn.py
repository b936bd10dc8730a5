"""Rule clients-as-drawn, on sets alone."""

import numpy as np
import pytest
from scipy.stats import binom

from privaudit.checks.lint.clients_as_drawn import _in_a_pattern, chernoff


@pytest.mark.parametrize(("clients", "count", "rounds"), [(8, 2, 20), (30, 3, 60)])
def test_drawn_clients_have_no_pattern(clients: int, count: int, rounds: int) -> None:
    """Of 200 federations, each at a level of 1e-6, none has one."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        sets = {
            index: set(rng.choice(clients, count, replace=False).tolist())
            for index in range(rounds)
        }
        assert list(_in_a_pattern(sets, clients)) == []


def test_shuffled_turns_have_counts_that_are_too_equal() -> None:
    """Everybody once in each pass over the clients, in an order of its own."""
    rng, sets = np.random.default_rng(0), {}
    for epoch in range(30):
        order = rng.permutation(10).tolist()
        for place in range(10):
            sets[10 * epoch + place] = {order[place]}
    (said,) = _in_a_pattern(sets, 10)
    assert "not drawn" in said


@pytest.mark.parametrize("chance", [0.1, 0.5])
def test_the_bound_is_above_what_a_binomial_has(chance: float) -> None:
    """Oracle: binomial tails, which those of hypergeometric sums lie below."""
    draws = 50
    for found in range(draws + 1):
        tail = (
            binom.sf(found - 1, draws, chance)
            if found > draws * chance
            else binom.cdf(found, draws, chance)
        )
        assert tail <= chernoff(found, draws, draws * chance) + 1e-12
