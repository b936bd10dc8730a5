"""What is drawn out of a model is counted by what had a coin, not by record."""

import numpy as np
import pytest
import torch

from privaudit.runs.ledger import Ledger
from privaudit_labs.extraction.answer_table import AnswerTable
from privaudit_labs.extraction.drawn_texts import Draws, ExtractedClient
from privaudit_labs.extraction.extracted import drawn_shares
from privaudit_labs.extraction.extraction import Extraction
from privaudit_labs.member_shares import MemberShares

RECORDS, SIZE = 60, 5


def drawn(grouped: bool, exact: np.ndarray, coins: np.ndarray) -> MemberShares:
    """Return the share of one client's texts that came, all of them drawn backwards."""
    order = np.arange(RECORDS)[::-1]
    first = order - order % SIZE
    ledger = Ledger(
        np.zeros(RECORDS, np.int64),
        coins[np.arange(RECORDS) // SIZE],
        group=np.sort(first) if grouped else None,
    )
    none = torch.zeros(RECORDS, 0)
    table = AnswerTable(none, none > 0, torch.ones(RECORDS, dtype=torch.int64))
    one = ExtractedClient("client-0", table, order, Draws(exact, exact, 20))
    found = drawn_shares(ledger, Extraction(), [one], [np.arange(RECORDS)])
    return found["50 % shown, exact within 20 draws"]


def test_records_that_share_a_coin_are_one_trial() -> None:
    coins = np.arange(RECORDS // SIZE) < 4
    exact = np.zeros(RECORDS, np.int64)
    exact[-2:] = 3  # two records of the first group, a member
    exact[0] = 1  # one of the last, which is none
    found = drawn(True, exact, coins)
    assert (found.members.n, found.others.n) == ((4,), (8,))
    assert found.members.value == pytest.approx(1 / 4)
    assert found.others.value == pytest.approx(1 / 8)
    alone = drawn(False, exact, coins)
    assert (alone.members.n, alone.others.n) == ((20,), (40,))
    assert alone.members.value == pytest.approx(2 / 20)


def null_alarms(nulls: int, often: float) -> float:
    """Return the share of alarms, where groups of texts come together or not at all.

    Args:
        nulls: How many are drawn.
        often: The chance of a group to come, whether it was trained on or not.
    """
    rng, alarms, groups = np.random.default_rng(6), 0, RECORDS // SIZE
    for _ in range(nulls):
        come = np.repeat(rng.random(groups) < often, SIZE)[::-1]
        coins = rng.permutation(np.arange(groups) < groups // 2)
        alarms += drawn(True, come.astype(np.int64), coins).beyond.low > 0
    return alarms / nulls


def test_groups_of_texts_that_come_together_raise_few_alarms() -> None:
    assert null_alarms(400, 0.5) <= 0.025 + 3 * (0.025 * 0.975 / 400) ** 0.5
