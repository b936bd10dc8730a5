import math

import pytest

from privaudit.attacks.token_loss import TokenLoss
from privaudit.federated.trainer import Task
from tests.attacks.word_world import by_hand

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]


def test_scores_by_hand(task: Task) -> None:
    """The first id is expected by nobody, and what follows the last is not known."""
    (found,) = TokenLoss()(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([(math.log(0.5) + math.log(0.75)) / 2])
