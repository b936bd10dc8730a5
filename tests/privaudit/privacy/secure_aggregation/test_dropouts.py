"""Every way in which four clients can be lost between the rounds of the protocol."""

from itertools import product

import numpy as np
import pytest

from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from privaudit.privacy.secure_aggregation.packets import MASKED, SIGNED, STAGES
from privaudit.privacy.secure_aggregation.protocol import ProtocolOutcome, threshold_of
from tests.privaudit.privacy.secure_aggregation.bounds import error_of_sum
from tests.privaudit.privacy.secure_aggregation.conftest import summed

NEVER = len(STAGES)
UPDATES = np.array([[2.0**i, -(3.0**i) / 100] for i in range(5)])
"""No two groups of clients have the same sum."""


def run(pattern: tuple[int, ...]) -> ProtocolOutcome:
    lost = {client: stage for client, stage in enumerate(pattern) if stage < NEVER}
    return summed(UPDATES[: len(pattern)].tolist(), largest=32.0, lost=lost)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("first", range(NEVER + 1))
def test_the_sum_is_of_those_who_sent_or_nothing_is_revealed(first: int) -> None:
    """All 6^4 patterns, in six parts."""
    for rest in product(range(NEVER + 1), repeat=3):
        assert_right((first, *rest))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_so_it_is_with_five_clients_where_patterns_are_drawn() -> None:
    """A third of them stay to the end, or most patterns would be aborted."""
    rng = np.random.default_rng(0)
    for _ in range(400):
        drawn = rng.integers(0, 3 * NEVER // 2 + 1, size=5)
        assert_right(tuple(np.minimum(drawn, NEVER).tolist()))


def assert_right(pattern: tuple[int, ...]) -> None:
    outcome, threshold = run(pattern), threshold_of(len(pattern))
    senders = [c for c, stage in enumerate(pattern) if stage > MASKED]
    at_the_end = sum(stage == NEVER for stage in pattern)
    if at_the_end >= threshold:
        assert outcome.survivors == tuple(senders)
        assert outcome.total is not None
        code = FixedPoint(len(pattern), 64, 32.0)
        found = code.decode(outcome.total)
        plain = UPDATES[senders].sum(axis=0)
        assert np.abs(found - plain).max() <= error_of_sum(code), pattern
    else:
        assert outcome.total is None
        assert outcome.survivors == ()
        assert outcome.why_aborted.startswith("too few survivors (")
        assert_hidden(outcome, threshold)


def assert_hidden(outcome: ProtocolOutcome, threshold: int) -> None:
    """Nobody revealed enough for one own mask: every masked update stays masked."""
    revealed = [p for p in outcome.packets if p.kind == "revealed-shares"]
    assert len(revealed) < threshold


def test_who_is_lost_after_sending_is_in_the_sum() -> None:
    outcome = run((SIGNED, NEVER, NEVER, NEVER, NEVER))
    assert outcome.survivors == (0, 1, 2, 3, 4)


def test_the_outcome_says_how_many_were_left() -> None:
    assert run((0, 4, 5, 5)).why_aborted == "too few survivors (2 of 3)"
    assert run((3, 4, 5, 5, 5)).why_aborted == "too few survivors (3 of 4)"
    assert run((0, 0, 0, 0, 0)).why_aborted == "too few survivors (0 of 4)"
