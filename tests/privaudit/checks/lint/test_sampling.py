"""Rules of sampling: records by coins, and clients as drawn."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.sampling import (
    Counts,
    _in_a_pattern,
    chernoff,
    inclusions_of,
    poisson_sampling,
)
from privaudit.federation.batches import Batch
from privaudit.federation.trainer import Cohort, Round, Task
from privaudit.privacy.events import ClientTrace
from privaudit.tuning.prompts.gradients import fixed_batch, poisson_batch
from privaudit.tuning.prompts.private_training import PrivateTrainer
from tests.privaudit.checks.lint.conftest import Look

SIZES = {"client-0": 12, "client-1": 9, "client-2": 15}


def with_batches(evidence: Evidence, batches: list[tuple[int, ...]]) -> Evidence:
    """Let every client take the same batches, one a round."""
    trace = [
        {client: ClientTrace(12, (batch,)) for client in evidence.members}
        for batch in batches
    ]
    return replace(evidence, trace=trace)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda cohort, at: fixed_batch(cohort, at, 5), "Batch sizes spread"),
        (
            lambda cohort, at: poisson_batch(cohort, at, 0.6),
            "where the sampling rate is 0.417",
        ),
    ],
    ids=["a fixed size", "a higher rate"],
)
def test_batches_that_are_drawn_otherwise_than_declared_are_found(
    draw: Callable[..., Batch], said: str, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(self: PrivateTrainer, task: Task, cohort: Cohort, at: Round) -> Batch:
        return draw(cohort, at)

    monkeypatch.setattr(PrivateTrainer, "draw_batch", drawn)
    found = poisson_sampling(look(epsilon=8.0, rounds=15))
    (one,) = [f for f in found if said in f.sentence]
    assert one.severity == "error"


def test_poisson_batches_are_silent(look: Look) -> None:
    assert poisson_sampling(look(epsilon=8.0, rounds=15)) == []


def test_shuffled_epochs_are_found_by_how_evenly_records_are_drawn(look: Look) -> None:
    """Sizes vary as Poisson's do, and yet every record comes exactly as often."""
    evidence = look(epsilon=8.0, rounds=40)
    rng = np.random.default_rng(0)
    sizes, start, batches = rng.binomial(12, 5 / 12, size=40), 0, []
    for size in sizes:
        batches.append(tuple((start + i) % 12 for i in range(size)))
        start += size
    found = poisson_sampling(with_batches(evidence, batches))
    assert any("Numbers of batches that a record is in" in f.sentence for f in found)


def test_few_batches_cannot_tell(look: Look) -> None:
    one_round = look(epsilon=8.0, rounds=1)
    trace = [
        {client: ClientTrace(n, (tuple(range(5)),)) for client, n in SIZES.items()}
    ]
    evidence = replace(one_round, trace=trace)
    (found,) = poisson_sampling(evidence)
    assert found.severity == "note"
    assert "2 batches from 10 records or more are too few" in found.sentence


def test_without_a_trace_it_says_that_it_cannot_tell(look: Look) -> None:
    (found,) = poisson_sampling(replace(look(epsilon=8.0), trace=None))
    assert found.severity == "warning"


def test_at_rate_one_no_record_may_be_left_out(look: Look) -> None:
    evidence = look(epsilon=8.0, batch_size=12)
    assert poisson_sampling(evidence) == []
    (found,) = poisson_sampling(with_batches(evidence, [tuple(range(11))]))
    assert "3 clients' rounds left records out" in found.sentence


def test_batches_that_are_not_declared_poisson_are_not_judged(look: Look) -> None:
    assert poisson_sampling(look(mode="published-paper", epsilon=8.0)) == []


def test_inclusions_count_each_record_of_each_client(look: Look) -> None:
    """By hand: record 0 twice, record 1 once, the other ten never, three clients."""
    evidence = with_batches(look(epsilon=8.0), [(0, 1), (0,)])
    counts = inclusions_of(evidence, 0.4)
    assert counts.counts.tolist() == 3 * [2, 1, *[0] * 10]
    assert set(counts.trials.tolist()) == {2}


def test_the_spread_of_equal_sizes_is_zero() -> None:
    counts = Counts("sizes", np.full(50, 5), np.full(50, 10), 0.5)
    assert counts.spread() == 0
    assert counts.p_value() < 1e-9


@pytest.mark.parametrize(
    ("trials", "rate", "n"),
    [(30, 0.25, 60), (12, 0.05, 200), (10, 0.5, 40), (30, 0.3, 3)],
)
def test_poisson_samples_are_called_something_else_no_more_often_than_the_level(
    trials: int, rate: float, n: int
) -> None:
    """Null calibration: at most the level and three standard errors."""
    rng = np.random.default_rng(1)
    draws, tossed = 1000, np.full(n, trials)
    values = np.array(
        [
            Counts("sizes", counts, tossed, rate).p_value()
            for counts in rng.binomial(trials, rate, size=(draws, n))
        ]
    )
    for level in (0.01, 0.05):
        error = (level * (1 - level) / draws) ** 0.5
        assert (values < level).mean() <= level + 3 * error


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
