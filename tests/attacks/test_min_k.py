import math

import pytest

from privaudit.attacks.min_k import MinK
from privaudit.federated.trainer import Task
from tests.attacks.word_world import by_hand

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 0.5), (50, 0.5), (100, 0.375**0.5)]
)
def test_scores_by_hand(share: int, expected: float, task: Task) -> None:
    (found,) = MinK(share=share)(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([math.log(expected)])
