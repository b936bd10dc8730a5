import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import proportion
from privaudit_tools.selftest.calibration import (
    GaussianCanaries,
    RandomisedResponse,
    Silence,
    SimulatedMechanism,
    holds,
    simulated,
    standard_bounds,
)


def test_blocks_leave_no_audit_out(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privaudit_tools.selftest.calibration.AT_ONCE", 300)
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


@given(epsilon=st.floats(0, 40), delta=st.floats(0, 1, exclude_max=True))
def test_randomised_response_spends_delta_exactly(epsilon: float, delta: float) -> None:
    """delta = max(0, q - e^eps' (1 - q)), Kairouz, Oh and Viswanath's hockey stick."""
    q, found = expit(epsilon), RandomisedResponse(epsilon).epsilon_at(delta)
    spent = q - np.exp(found) * expit(-epsilon)
    if found > 0:
        assert spent == pytest.approx(delta, abs=1e-9)
    else:
        assert spent <= delta + 1e-9


def test_silence_has_epsilon_0() -> None:
    assert Silence().epsilon_at(0.0) == 0
