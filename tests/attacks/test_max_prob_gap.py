import math

import pytest

from privaudit.attacks.max_prob_gap import MaxProbGap
from privaudit.federated.trainer import Task
from privaudit.statistics.roc import pooled_auroc
from tests.attacks.word_world import attacked, by_hand, groups

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]


def test_scores_by_hand(task: Task) -> None:
    (found,) = MaxProbGap()(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([(0 + 0.5) / 2])


def test_as_published_it_is_a_gap_of_logarithms(task: Task) -> None:
    (found,) = MaxProbGap(published=True)(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([math.log(3) / 2])


def test_a_picture_can_be_scored(task: Task) -> None:
    adversary, targets, truth = attacked(task, results=True)
    scores = MaxProbGap(slice="image")(adversary, targets)
    assert pooled_auroc(groups(scores, truth)).value == 1
