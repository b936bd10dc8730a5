import math

import pytest

from privaudit.attacks.mod_renyi import ModRenyi
from privaudit.federated.trainer import Task
from tests.attacks.word_world import by_hand

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (2.0, (0.5 + 0.125) / 2),
        (1.0, (math.log(2) - 2 * 0.25 * math.log(0.75)) / 2),
        (0.5, 2 * (1 - math.sqrt(0.5)) / 2 + 0.5 * 2 * (1 - math.sqrt(0.75)) / 2),
    ],
)
def test_scores_by_hand(alpha: float, expected: float, task: Task) -> None:
    """For two words it is 2 (1 - p) s(p), twice the missed times the surprise."""
    (found,) = ModRenyi(alpha=alpha)(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([-expected])
