import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from pydantic import TypeAdapter

from privaudit.core.errors import ConfigError
from privaudit.statistics.epsilon.bound import (
    CanaryScores,
    EpsilonBound,
    EpsilonMethod,
    IndependentRuns,
    ManyRunsMethod,
    OneRunCanaries,
    OneRunMethod,
    largest_rejected,
    require_design,
)
from privaudit_tools.selftest.calibration import standard_bounds

NAMES = sorted(standard_bounds(10))
BOUND = EpsilonBound(
    1.234, 0.95, 1e-5, (50, 48), 3.49, "one run", "by hand", can_refute=True
)


def audit(method: EpsilonMethod, scores: CanaryScores) -> EpsilonBound:
    if isinstance(method, ManyRunsMethod):
        return method(IndependentRuns(scores.scores, scores.is_member))
    assert isinstance(method, OneRunMethod)
    return method(OneRunCanaries(scores.scores, scores.is_member))


def drawn(n: int, shift: float, seed: int) -> CanaryScores:
    rng = np.random.default_rng(seed)
    is_member = rng.random(n) < 0.5
    return CanaryScores(rng.standard_normal(n) + shift * is_member, is_member)


def test_a_bound_reads_as_a_sentence() -> None:
    assert str(BOUND) == (
        "epsilon >= 1.23 at 95 % (ceiling 3.49), delta = 1e-05, n = 50 + 48, one run, "
        "by hand"
    )
    assert str(replace(BOUND, can_refute=False)).endswith("informative, cannot refute")


def test_a_bound_survives_json() -> None:
    stored = TypeAdapter(EpsilonBound)
    assert stored.validate_json(json.dumps(asdict(BOUND))) == BOUND
    with pytest.raises(ValueError, match="Field required"):
        stored.validate_python({"value": 1.0})


@pytest.mark.parametrize("value", [-0.1, 3.5, np.nan])
def test_a_bound_lies_between_nothing_and_its_ceiling(value: float) -> None:
    with pytest.raises(ConfigError, match=r"ceiling 3\.49"):
        replace(BOUND, value=value)


@pytest.mark.parametrize("name", NAMES)
def test_scores_of_the_other_design_are_refused(name: str) -> None:
    method = standard_bounds(10)[name]
    many = isinstance(method, ManyRunsMethod)
    other = OneRunCanaries if many else IndependentRuns
    scores = other(np.arange(10.0), np.arange(10) % 2 == 0)
    with pytest.raises((ConfigError, TypeCheckError)):
        method(scores)  # type: ignore[operator]
    with pytest.raises(ConfigError, match=f"{name} bounds epsilon from"):
        method._bound(scores)


@pytest.mark.parametrize("name", NAMES)
def test_perfect_scores_reach_the_ceiling(name: str) -> None:
    is_member = np.arange(120) % 2 == 0
    scores = CanaryScores(np.where(is_member, 3.9, -1.9), is_member)
    bound = audit(standard_bounds(120)[name], scores)
    assert bound.value == pytest.approx(bound.ceiling)
    assert bound.value > 1


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12)
@given(
    n=st.integers(10, 150),
    shift=st.floats(-1, 6),
    seed=st.integers(0, 10**6),
    delta=st.sampled_from([1e-6, 1e-4, 1e-2, 0.2]),
)
def test_bounds_lie_below_their_ceiling_and_fall_with_delta_and_confidence(
    name: str, n: int, shift: float, seed: int, delta: float
) -> None:
    scores, method = drawn(n, shift, seed), standard_bounds(n, delta)[name]
    bound = audit(method, scores)
    assert 0 <= bound.value <= bound.ceiling
    higher_delta = audit(standard_bounds(n, 2 * delta)[name], scores)
    assert higher_delta.value <= bound.value + 1e-9
    assert higher_delta.ceiling <= bound.ceiling + 1e-9
    surer = audit(replace(method, confidence=0.99), scores)
    assert surer.ceiling <= bound.ceiling + 1e-9
    if "split" not in bound.method:  # a surer split chooses another threshold
        assert surer.value <= bound.value + 1e-9


@pytest.mark.parametrize("name", [n for n in NAMES if "OneRun" in n or "Split" in n])
@settings(max_examples=6)
@given(n=st.integers(10, 80), shift=st.floats(-1, 4), seed=st.integers(0, 10**6))
def test_increasing_transforms_of_the_scores_change_nothing(
    name: str, n: int, shift: float, seed: int
) -> None:
    scores, method = drawn(n, shift, seed), standard_bounds(n)[name]
    ranks = scores.scores.argsort().argsort()
    for other in (ranks, np.arctan(scores.scores)):
        assert audit(method, scores) == audit(
            method, CanaryScores(other, scores.is_member)
        )


COINS = np.array([True, False, True])


def test_members_and_nonmembers_are_counted() -> None:
    runs = IndependentRuns(np.arange(3.0), COINS)
    assert (runs.members, runs.nonmembers) == (2, 1)


def test_each_design_passes_for_itself_only() -> None:
    runs, canaries = (kind(np.arange(3), COINS) for kind in KINDS)
    require_design(runs, "many runs", "A bound")
    require_design(canaries, "one run", "A bound")
    with pytest.raises(
        ConfigError, match=r"of 3 canaries of one run\. It does not hold"
    ):
        require_design(canaries, "many runs", "SplitThreshold")
    with pytest.raises(ConfigError, match=r"of 3 runs\. It does not hold"):
        require_design(runs, "one run", "OneRunGuesses")


KINDS = (IndependentRuns, OneRunCanaries)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_that_cannot_be_used_are_refused(
    kind: type[IndependentRuns | OneRunCanaries],
) -> None:
    with pytest.raises(ConfigError, match="2 scores and 3 coins"):
        kind(np.arange(2.0), COINS)
    with pytest.raises(ConfigError, match="0 scores and 0 coins"):
        kind(np.zeros(0), COINS[:0])
    with pytest.raises(ConfigError, match="2 of 3"):
        kind(np.array([1.0, np.nan, np.inf]), COINS)


def test_it_finds_each_end_from_below() -> None:
    ends = np.array([0.3, 2.0, 7.5])
    found = largest_rejected(lambda x: x < ends, np.full(3, 10.0))
    assert found == pytest.approx(ends, abs=1e-11)
    assert (found <= ends).all()


def test_it_is_0_where_0_is_not_rejected_and_the_top_where_all_is() -> None:
    found = largest_rejected(lambda x: x < np.array([-1.0, 99.0]), np.array([5.0, 5.0]))
    assert found == pytest.approx([0.0, 5.0])
