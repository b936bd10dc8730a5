"""The true-positive rate at few false alarms, of two keys, with exact ends."""

import numpy as np
import pytest

from privaudit.statistics.evidence import LIMITS, tail_rate, weigh
from privaudit.statistics.membership_test import ALPHA, Strata
from privaudit.statistics.roc import rate_with_ends


def _strata(
    rng: np.random.Generator, members: int, others: int, certain: int = 0
) -> Strata:
    scores = rng.normal(size=members + others)
    scores[:certain] += 50
    return [(scores, np.arange(members + others) < members)]


def test_members_that_are_certain_are_counted(rng: np.random.Generator) -> None:
    found = tail_rate(_strata(rng, 1000, 1000, certain=200))
    assert 0.17 < found.low < 0.2 <= found.value < 0.22 < found.high < 0.26
    every = tail_rate(_strata(rng, 1000, 1000, certain=1000))
    assert (every.value, every.high) == (1, 1)
    assert every.low > 0.99


def test_its_upper_end_is_the_bound_of_verdicts(rng: np.random.Generator) -> None:
    strata = _strata(rng, 283, 256)
    bound = weigh(None, strata).bound(LIMITS.fpr, ALPHA)
    assert tail_rate(strata).high == pytest.approx(bound)
    assert (
        tail_rate(strata).low == 0
    )  # as 256 others fix no threshold of 1 % from above
    wide, narrow = tail_rate(strata, confidence=0.99), tail_rate(strata, confidence=0.8)
    assert wide.high > bound > narrow.high


def test_an_upper_end_holds_at_the_confidence_of_many_checks(
    rng: np.random.Generator,
) -> None:
    """An order that is best at 95 % has no end at 99 %: each confidence has its own."""
    strata = _strata(rng, 1000, 1000)
    ends = [tail_rate(strata, confidence=c).high for c in (0.95, 0.99, 0.999)]
    assert ends == sorted(ends)
    assert ends[-1] < 0.05


def test_clusters_widen_it(rng: np.random.Generator) -> None:
    strata = _strata(rng, 1000, 1000, certain=200)
    alike = [np.repeat(np.arange(200), 10)]
    plain, clustered = tail_rate(strata), tail_rate(strata, alike)
    assert clustered.low < plain.low
    assert clustered.high > plain.high


@pytest.mark.parametrize("clients", [1, 4])
def test_of_several_clients_either_key_may_tell(
    clients: int, rng: np.random.Generator
) -> None:
    """A tenth of members is certain by its client's own scale, which grows by client."""
    strata = []
    for client in range(clients):
        ((scores, truth),) = _strata(rng, 250, 250, certain=25)
        strata.append((scores * 10**client, truth))
    assert tail_rate(strata).value >= 0.1


@pytest.mark.parametrize("curve", ["chance", "step"])
def test_both_ends_hold_for_the_worst_of_curves(
    curve: str, rng: np.random.Generator
) -> None:
    """Where rates jump at the true quantile, errors that partly cancel missed 22 %."""
    trials, count, fpr, share = 1000, 1000, 0.01, 0.1
    truth = share if curve == "step" else fpr
    low = high = 0
    for _ in range(trials):
        others, members = -rng.random(count), -rng.random(count)
        if curve == "step":  # just at the threshold that 1 % of others reach
            members = np.where(rng.random(count) < share, -fpr, -1.0)
        _, least, most = rate_with_ends(members, others, fpr, 0.95, (1000.0, 1000.0))
        low += least > truth
        high += most < truth
    assert max(low, high) / trials <= 0.025 + 4 * np.sqrt(0.025 * 0.975 / trials)
