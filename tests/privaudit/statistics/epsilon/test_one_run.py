import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.bound import OneRunCanaries
from privaudit.statistics.epsilon.one_run import (
    FDPOneRun,
    OneRunGuesses,
    f_dp_one_run_p_value,
    one_run_p_value,
)
from tests.golden import golden


def epsilon_of(
    kind: type[OneRunGuesses | FDPOneRun],
    counts: np.ndarray,
    r: int,
    m: int,
    delta: float,
) -> np.ndarray:
    """Return the bounds of r guesses at m canaries, of which ``counts`` are right."""
    return kind(guesses_in=r, guesses_out=0, delta=delta).epsilon_of(counts, m)


def golden_scores(known: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return a case's scores, those with the canary first, and its coins."""
    scores = np.concatenate([known["in_scores"], known["out_scores"]])
    return scores, np.arange(len(scores)) < len(known["in_scores"])


def plain_p_value(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """Return theorem 5.2's bound term by term."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = sum(binom.pmf(j, r, q) for j in range(v, r + 1))
    windows = [
        sum(binom.pmf(j, r, q) for j in range(max(v - i, 0), v)) / i
        for i in range(1, m + 1)
    ]
    return float(min(tail + 2 * m * delta * max(windows), 1.0))


@given(
    m=st.integers(1, 25),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    epsilon=st.floats(0, 8),
    delta=st.sampled_from([0.0, 1e-5, 1e-2]),
)
def test_the_p_value_equals_a_loop(
    m: int, share: tuple[float, float], epsilon: float, delta: float
) -> None:
    r = max(1, round(m * share[0]))
    v = round(r * share[1])
    ours = one_run_p_value(np.array([v]), r, m, np.array([epsilon]), delta)
    assert ours[0] == pytest.approx(plain_p_value(v, r, m, epsilon, delta), abs=1e-10)


def test_p_values_equal_the_golden_ones() -> None:
    known = golden("audit_bounds")
    names = ("m", "n_guess", "n_correct", "eps", "delta", "value")
    rows = zip(*(known[f"pv_{name}"].tolist() for name in names), strict=True)
    for m, r, v, epsilon, delta, expected in rows:
        ours = one_run_p_value(np.array([v]), r, m, np.array([epsilon]), delta)
        assert ours[0] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("delta", "name"), [(0.0, "d0"), (1e-5, "d1e5")])
def test_counts_give_the_golden_epsilon(delta: float, name: str) -> None:
    known = golden("audit_bounds")
    ours = [
        epsilon_of(OneRunGuesses, np.array([v]), r, m, delta)[0]
        for m, r, v in known["cnt_m_guess_correct"].tolist()
    ]
    expected = known[f"cnt_eps_one_run_s05_{name}"]
    assert np.array(ours) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("case", range(8))
def test_the_highest_scores_give_the_golden_bound_at_their_threshold(case: int) -> None:
    """There a threshold says how many to guess at; here that number is given."""
    known = golden("audit_bounds") | golden("audit_bounds", f"c{case}_")
    above = int(known["explicit_counts_tp_fp"].sum())
    canaries = OneRunCanaries(*golden_scores(known))
    expected = known["one_run_explicit"]
    for row, a in enumerate(known["significance"].tolist()):
        for column, d in enumerate(known["delta_one_run"].tolist()):
            method = OneRunGuesses(
                guesses_in=above, guesses_out=0, confidence=1 - a, delta=d
            )
            ours = method(canaries).value
            assert ours == pytest.approx(expected[row, column], abs=2e-6)


@pytest.mark.parametrize("kind", [OneRunGuesses, FDPOneRun])
@pytest.mark.parametrize(("m", "expected"), [(100, 3.49), (1000, 5.81)])
def test_ceilings_without_delta(
    kind: type[OneRunGuesses | FDPOneRun], m: int, expected: float
) -> None:
    q = 0.05 ** (1 / m)
    ours = kind(guesses_in=m // 2, guesses_out=m // 2).ceiling(m, 0)
    assert ours == pytest.approx(math.log(q / (1 - q)))
    assert round(ours, 2) == expected


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_p_value_rises_with_epsilon_wherever_it_decides(delta: float) -> None:
    """Else there would be rejected values beyond the one that bisection finds."""
    for r, m in ((10, 10), (10, 300), (100, 100), (100, 2000)):
        for v in range(1, r + 1, max(1, r // 10)):
            grid = np.linspace(0, 8, 400)
            p = one_run_p_value(np.full(400, v), r, m, grid, delta)
            deciding = np.minimum(p, 0.2)
            assert (np.diff(deciding) >= -1e-12).all(), (r, m, v)


@pytest.mark.parametrize("kind", [OneRunGuesses, FDPOneRun])
@given(
    r=st.integers(1, 200),
    m=st.integers(200, 2000),
    delta=st.sampled_from([0.0, 1e-6, 1e-4]),
)
def test_more_right_guesses_never_show_less(
    kind: type[OneRunGuesses | FDPOneRun], r: int, m: int, delta: float
) -> None:
    epsilon = epsilon_of(kind, np.arange(r + 1), r, m, delta)
    assert (np.diff(epsilon) >= -1e-9).all()
    assert epsilon[0] == 0


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


def too_many(v: int, r: int, m: int, tau: float, epsilon: float, delta: float) -> bool:
    """Run the published recursion, with both branches of the trade-off function."""
    right, wrong = tau * v / m, tau * (r - v) / m
    for i in range(v - 1, -1, -1):
        flat = (right - delta) * math.exp(-epsilon)
        steep = 1 - delta - (1 - right) * math.exp(epsilon)
        least = max(flat, steep, 0.0, wrong)
        right, wrong = right + i / (r - i) * (least - wrong), least
        if right + wrong >= r / m * (1 + 1e-12):
            return True
    return right + wrong >= r / m * (1 + 1e-12)


@given(
    m=st.integers(1, 200),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    epsilon=st.floats(0, 8),
    delta=st.sampled_from([0.0, 1e-5, 1e-3, 0.05]),
)
def test_the_closed_form_is_where_the_recursion_turns(
    m: int, share: tuple[float, float], epsilon: float, delta: float
) -> None:
    r = max(1, round(m * share[0]))
    v = round(r * share[1])
    p = f_dp_one_run_p_value(np.array([v]), r, m, np.array([epsilon]), delta)[0]
    assert 0 <= p <= 1
    if p > 1e-12:
        assert not too_many(v, r, m, p * (1 - 1e-6), epsilon, delta)
    if p < 0.999:
        assert too_many(v, r, m, p * (1 + 1e-6) + 1e-15, epsilon, delta)


@given(r=st.integers(1, 150), extra=st.integers(0, 500), epsilon=st.floats(0, 6))
def test_without_delta_it_is_no_tighter_than_the_binomial(
    r: int, extra: int, epsilon: float
) -> None:
    counts = np.arange(r + 1)
    ours = f_dp_one_run_p_value(counts, r, r + extra, np.full(r + 1, epsilon), 0.0)
    tail = one_run_p_value(counts, r, r + extra, np.full(r + 1, epsilon), 0.0)
    assert (ours >= tail - 1e-9).all()
    assert ours[-1] == pytest.approx(tail[-1])  # all right: the same


def test_epsilon_is_where_the_p_value_is_the_significance() -> None:
    counts = np.array([60, 80, 100])
    epsilon = epsilon_of(FDPOneRun, counts, 100, 1000, 1e-5)
    p = f_dp_one_run_p_value(counts, 100, 1000, epsilon, 1e-5)
    assert p == pytest.approx(np.full(3, 0.05), abs=1e-9)


def test_few_guesses_among_many_canaries_lose_less_to_delta() -> None:
    binomial, ours = (
        epsilon_of(kind, np.array([200]), 200, 20_000, 1e-5)[0]
        for kind in (OneRunGuesses, FDPOneRun)
    )
    assert ours > binomial + 0.1
