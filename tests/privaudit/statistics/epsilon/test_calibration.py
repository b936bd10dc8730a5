from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.bound import EpsilonMethod
from privaudit.statistics.epsilon.calibration import (
    GaussianCanaries,
    RandomisedResponse,
    Silence,
    SimulatedMechanism,
    coverage,
    holds,
    simulated,
    standard_bounds,
)
from privaudit.statistics.epsilon.many_runs import FixedGrid
from privaudit.statistics.epsilon.one_run import FDPOneRun, OneRunGuesses
from privaudit.statistics.estimate import proportion

NAMES = sorted(standard_bounds(10))
REFUTING = [name for name in NAMES if standard_bounds(10)[name].can_refute]
ONE_RUN = [name for name in REFUTING if "OneRun" in name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_without_a_leak_a_bound_is_above_0_in_at_most_its_significance(
    name: str, n: int, delta: float, rng: np.random.Generator
) -> None:
    share = coverage(standard_bounds(n, delta)[name], Silence(), n, 1000, rng)
    assert holds(share, 0.05), share


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_a_bound_is_beyond_the_gaussian_mechanism_no_more_often(
    name: str, epsilon: float, rng: np.random.Generator
) -> None:
    mechanism = GaussianCanaries(epsilon)
    share = coverage(standard_bounds(1000)[name], mechanism, 1000, 500, rng)
    assert holds(share, 0.05), share


@pytest.mark.parametrize("name", REFUTING)
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])
def test_a_bound_is_beyond_randomised_response_no_more_often(
    name: str, epsilon: float, delta: float, rng: np.random.Generator
) -> None:
    bound = standard_bounds(1000, delta)[name]
    share = coverage(bound, RandomisedResponse(epsilon), 1000, 1000, rng)
    assert holds(share, 0.05), share


@pytest.mark.parametrize(
    ("bound", "n"),
    [
        (OneRunGuesses(guesses_in=9_000, guesses_out=9_000), 20_000),
        (FDPOneRun(guesses_in=9_000, guesses_out=9_000), 20_000),
        (FixedGrid(thresholds=(0.5,)), 40_000),
    ],
)
def test_epsilon_8_is_held_where_it_is_in_reach(
    bound: EpsilonMethod, n: int, rng: np.random.Generator
) -> None:
    """At n = 1,000 it is beyond every ceiling, which tests nothing."""
    assert bound.ceiling(n // 2, n // 2) > 8.3
    share = coverage(bound, RandomisedResponse(8.0), n, 60, rng)
    assert holds(share, 0.05), share


@pytest.mark.parametrize("guesses", [10, 100, 1000])
def test_one_run_holds_at_any_number_of_guesses_where_it_is_tight(
    guesses: int, rng: np.random.Generator
) -> None:
    bound = OneRunGuesses(guesses_in=guesses // 2, guesses_out=guesses // 2)
    share = coverage(bound, RandomisedResponse(1.0), 1000, 2000, rng)
    assert holds(share, 0.05), share
    assert share.value > 0.005


@dataclass(frozen=True)
class RareDisclosure:
    """Randomised response that, with a chance of delta, discloses all coins at once.

    (epsilon, delta)-DP whose delta strikes a whole audit: the failure that the delta
    term of a one-run bound is there for.
    """

    epsilon: float
    delta: float

    def score(self, is_member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        answers = RandomisedResponse(self.epsilon).score(is_member, rng)
        disclosed = rng.random((len(is_member), 1)) < self.delta
        return np.where(disclosed, is_member, answers)

    def epsilon_at(self, delta: float) -> float:
        assert delta >= self.delta
        return self.epsilon


@pytest.mark.parametrize("name", ONE_RUN)
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_one_run_holds_where_delta_strikes_all_canaries_at_once(
    name: str, epsilon: float, rng: np.random.Generator
) -> None:
    mechanism = RareDisclosure(epsilon, 0.04)
    bound = standard_bounds(200, 0.04)[name]
    share = coverage(bound, mechanism, 200, 1000, rng)
    assert holds(share, 0.05), share


def test_clopper_pearson_on_one_run_is_no_bound(rng: np.random.Generator) -> None:
    """Canaries disclosed together are one event: a fifth of audits claims falsely."""
    mechanism, delta = RareDisclosure(0.0, 0.2), 0.2
    split, ours = (
        coverage(standard_bounds(200, delta)[name], mechanism, 200, 500, rng)
        for name in ("SplitThreshold", "OneRunGuesses")
    )
    assert split.low > 0.1
    assert holds(ours, 0.05)


@pytest.mark.parametrize("name", NAMES)
def test_more_canaries_show_more(name: str, rng: np.random.Generator) -> None:
    few, many = (
        np.median(simulated(bound, GaussianCanaries(4.0), n, 40, rng))
        for n, bound in ((n, standard_bounds(n)[name]) for n in (200, 5000))
    )
    assert few < many < 4.0
    assert many > 0.25 * 4.0


def test_blocks_leave_no_audit_out(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privaudit.statistics.epsilon.calibration.AT_ONCE", 300)
    bound = standard_bounds(100)["OneRunGuesses"]
    assert len(simulated(bound, Silence(), 100, 10, rng)) == 10


def test_what_holds_by_hand() -> None:
    """5 % + 3 standard errors of 1,000 audits is 7.07 %."""
    assert holds(proportion(70, 1000), 0.05)
    assert not holds(proportion(71, 1000), 0.05)


def test_too_few_canaries_for_a_fifth_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 canaries"):
        standard_bounds(9)


COINS = np.arange(40_000).reshape(1, -1) % 2 == 0
ALL: list[SimulatedMechanism] = [
    Silence(),
    GaussianCanaries(2.0),
    RandomisedResponse(1.0),
]


@pytest.mark.parametrize("mechanism", ALL)
def test_a_seed_repeats_the_scores(mechanism: SimulatedMechanism) -> None:
    first, again = (mechanism.score(COINS, np.random.default_rng(3)) for _ in range(2))
    assert (first == again).all()
    assert first.shape == COINS.shape


def test_gaussian_scores_are_mu_apart(rng: np.random.Generator) -> None:
    mechanism = GaussianCanaries(4.0)
    scores = mechanism.score(COINS, rng)
    gap = scores[COINS].mean() - scores[~COINS].mean()
    assert gap == pytest.approx(mechanism.mu, abs=0.05)
    assert mechanism.epsilon_at(1e-5) == pytest.approx(4.0)


def test_answers_are_right_as_often_as_epsilon_allows(
    rng: np.random.Generator,
) -> None:
    scores = RandomisedResponse(1.0).score(COINS, rng)
    assert (scores == COINS).mean() == pytest.approx(expit(1.0), abs=0.02)


@given(epsilon=st.floats(0, 8), delta=st.floats(0, 1, exclude_max=True))
def test_randomised_response_spends_delta_exactly(epsilon: float, delta: float) -> None:
    """delta = max(0, q - e^eps' (1 - q)), Kairouz, Oh and Viswanath's hockey stick."""
    q, found = expit(epsilon), RandomisedResponse(epsilon).epsilon_at(delta)
    spent = q - np.exp(found) * (1 - q)
    if found > 0:
        assert spent == pytest.approx(delta, abs=1e-9)
    else:
        assert spent <= delta + 1e-9


def test_silence_has_epsilon_0() -> None:
    assert Silence().epsilon_at(0.0) == 0
