import math

import pytest

from privaudit.attacks.min_k_plus_plus import MinKPlusPlus
from privaudit.federated.trainer import Task
from tests.attacks.word_world import by_hand

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]


@pytest.mark.parametrize(("share", "expected"), [(0, 0.0), (100, 1 / math.sqrt(3) / 2)])
def test_scores_by_hand(share: int, expected: float, task: Task) -> None:
    """At 3 to 1 log p is log 3 / 4 above its mean, and deviates by √3 log 3 / 4."""
    (found,) = MinKPlusPlus(share=share)(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([expected])
