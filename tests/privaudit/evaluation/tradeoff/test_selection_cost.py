from dataclasses import replace

import pytest

from privaudit.evaluation.tradeoff.selection_cost import (
    Spent,
    compose,
    describe,
    search_cost,
)
from privaudit.privacy.certificate import certify
from privaudit.privacy.events import MechanismEvent
from privaudit.statistics.epsilon.gaussian_mechanism import gaussian_epsilon

NOISE, ROUNDS, DELTA = 20.0, 4, 1e-5

EVENT = MechanismEvent(
    release="upload",
    kind="gaussian",
    noise_multiplier=NOISE,
    sensitivity=1.0,
    clip_norm=1.0,
    sampling_rate=1.0,
    sampling="fixed-batch",
    noise_at="client",
    parties=3,
    steps=1,
    per_record=True,
)


def spent(seed: int, rounds: int = ROUNDS) -> Spent:
    events = ((EVENT,),) * rounds
    proved = certify(events, "released", DELTA)
    return Spent(seed, "released", proved.epsilon, DELTA, events)


BARE = Spent(1, "released", None, DELTA, ())
NOTHING = Spent(1, "released", 0.0, DELTA, ())


def test_runs_of_one_mechanism_cost_what_one_longer_run_costs() -> None:
    """Closed form: mu = sqrt(runs * rounds) / noise."""
    found = compose([spent(1), spent(2), spent(3)])
    assert found is not None
    expected = gaussian_epsilon((3 * ROUNDS) ** 0.5 / NOISE, DELTA)
    assert found.epsilon == pytest.approx(expected)
    assert found.largest < found.epsilon < found.summed
    assert found.summed == pytest.approx(3 * found.largest)


def test_one_run_costs_its_own_epsilon() -> None:
    found = compose([spent(1)])
    assert found is not None
    assert found.epsilon == found.largest == found.summed


def test_what_has_no_proof_is_counted_and_what_leaks_nothing_is_free() -> None:
    cost = search_cost(3, [spent(1), BARE, NOTHING, spent(2), replace(BARE, seed=2)])
    assert (cost.cells, cost.runs, cost.unprotected) == (3, 5, 2)
    assert cost.one_seed is not None
    assert cost.all_seeds is not None
    assert (cost.one_seed.runs, cost.all_seeds.runs) == (1, 2)
    assert cost.all_seeds.epsilon > cost.one_seed.epsilon


def test_sentences_say_that_it_is_not_the_epsilon_of_the_cell_picked() -> None:
    cost = search_cost(2, [spent(1), spent(1, rounds=2), replace(BARE, seed=2)])
    text = " ".join(describe(cost))
    assert "2 of the 2 cells have a proved ε" in text
    assert "not the ε of the cell that is picked" in text
    assert "no ε covers a choice by them" in text
    assert "Liu and Talwar 2019" in text
    assert "Papernot and Steinke 2022" in text
    assert "1 of the 3 runs carry no proof" in text


def test_a_search_without_private_runs_says_nothing_of_epsilon() -> None:
    assert describe(search_cost(2, [BARE, NOTHING])) == []
