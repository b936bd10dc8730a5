import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.designs import OneRunCanaries
from privaudit.statistics.epsilon.one_run import OneRunGuesses


def correct(scores: np.ndarray, is_member: np.ndarray, inside: int, out: int) -> int:
    method = OneRunGuesses(guesses_in=inside, guesses_out=out)
    return int(method.correct(scores[None], is_member[None])[0])


def test_guesses_by_hand() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.3, 0.7])
    is_member = np.array([False, True, True, True, False])
    assert correct(scores, is_member, 2, 0) == 1
    assert correct(scores, is_member, 0, 2) == 1
    assert correct(scores, is_member, 3, 2) == 3


@given(
    seed=st.integers(0, 10**6),
    inside=st.integers(0, 10),
    out=st.integers(0, 10),
    extra=st.integers(1, 20),
)
def test_it_equals_a_sort_and_mirrors(
    seed: int, inside: int, out: int, extra: int
) -> None:
    if inside + out == 0:
        return
    rng, n = np.random.default_rng(seed), inside + out + extra
    scores, is_member = rng.permutation(n), rng.random(n) < 0.5
    ranked = is_member[np.argsort(scores)].tolist()
    expected = sum(ranked[n - inside :]) + out - sum(ranked[:out])
    assert correct(scores, is_member, inside, out) == expected
    assert correct(-scores, ~is_member, out, inside) == expected


def test_the_order_of_equal_scores_tells_nothing() -> None:
    """Members stand first; ties broken by place would make every guess right."""
    is_member = np.arange(2000) < 1000
    right = correct(np.zeros(2000), is_member, 500, 500)
    assert 400 < right < 600


def test_more_guesses_than_canaries_are_refused() -> None:
    method = OneRunGuesses(guesses_in=3, guesses_out=3)
    with pytest.raises(ConfigError, match=r"6 guesses need as many canaries.* 5"):
        method(OneRunCanaries(np.arange(5.0), np.arange(5) > 2))
    with pytest.raises(ConfigError, match="6 guesses"):
        method.ceiling(2, 3)


def test_no_guess_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="guesses_in and guesses_out are 0"):
        OneRunGuesses(guesses_in=0, guesses_out=0)
