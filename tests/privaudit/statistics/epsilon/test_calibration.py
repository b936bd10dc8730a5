from dataclasses import dataclass

import numpy as np
import pytest

from privaudit.statistics.epsilon.bound import EpsilonMethod
from privaudit.statistics.epsilon.one_run import FDPOneRun, OneRunGuesses
from privaudit_tools.selftest.calibration import (
    GaussianCanaries,
    RandomisedResponse,
    Silence,
    coverage,
    holds,
    simulated,
    standard_bounds,
)
from privaudit_tools.selftest.fixed_grid import FixedGrid

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
