"""Every way in which five clients can be lost between the rounds of the protocol."""

from itertools import product

import numpy as np
import pytest

from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from privaudit.privacy.secure_aggregation.packets import STAGES
from privaudit.privacy.secure_aggregation.protocol import MASKED, REVEALED, Outcome
from tests.privaudit.privacy.secure_aggregation.conftest import summed

CLIENTS, THRESHOLD, NEVER = 5, 3, len(STAGES)
UPDATES = np.array([[2.0**i, -(3.0**i) / 100] for i in range(CLIENTS)])
"""No two groups of clients have the same sum."""
CODE = FixedPoint(CLIENTS, 64, 32.0)


def run(pattern: tuple[int, ...]) -> Outcome:
    lost = {client: stage for client, stage in enumerate(pattern) if stage < NEVER}
    return summed(UPDATES.tolist(), largest=32.0, lost=lost)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("first", range(NEVER + 1))
def test_the_sum_is_of_those_who_sent_or_nothing_is_revealed(first: int) -> None:
    """All 5^5 patterns, in five parts."""
    for rest in product(range(NEVER + 1), repeat=CLIENTS - 1):
        pattern = (first, *rest)
        outcome = run(pattern)
        senders = [c for c, stage in enumerate(pattern) if stage > MASKED]
        at_the_end = sum(stage == NEVER for stage in pattern)
        if at_the_end >= THRESHOLD:
            assert outcome.survivors == tuple(senders)
            assert outcome.total is not None
            found = CODE.decode(outcome.total)
            plain = UPDATES[senders].sum(axis=0)
            assert np.abs(found - plain).max() <= CODE.error_of_sum, pattern
        else:
            assert outcome.total is None
            assert outcome.survivors == ()
            assert outcome.why_aborted.startswith("too few survivors (")
            assert_hidden(outcome)


def assert_hidden(outcome: Outcome) -> None:
    """Nobody revealed enough for one own mask: every masked update stays masked."""
    revealed = [p for p in outcome.packets if p.kind == "revealed-shares"]
    assert len(revealed) < THRESHOLD


def test_who_is_lost_after_sending_is_in_the_sum() -> None:
    outcome = run((REVEALED, REVEALED, NEVER, NEVER, NEVER))
    assert outcome.survivors == (0, 1, 2, 3, 4)


def test_the_outcome_says_how_many_were_left() -> None:
    assert run((0, 1, 2, 4, 4)).why_aborted == "too few survivors (2 of 3)"
    assert run((0, 0, 0, 0, 0)).why_aborted == "too few survivors (0 of 3)"
