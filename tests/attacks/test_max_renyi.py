import math

import pytest

from privaudit.attacks.max_renyi import MaxRenyi
from privaudit.federated.trainer import Task
from privaudit.statistics.roc import pooled_auroc
from tests.attacks.word_world import attacked, by_hand, groups

# Two words: both as likely, then the right one 3 to 1; nothing comes after the last.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]

HALF, THREE_QUARTERS = math.log(2), -math.log(10 / 16)  # H_2


@pytest.mark.parametrize(
    ("share", "expected"), [(0, HALF), (60, HALF), (100, (HALF + THREE_QUARTERS) / 2)]
)
def test_scores_by_hand(share: int, expected: float, task: Task) -> None:
    (found,) = MaxRenyi(share=share)(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([-expected])


def test_every_order_is_of_the_same_two_positions(task: Task) -> None:
    for alpha, entropy in [
        (0.5, 2 * math.log(math.sqrt(0.75) + 0.5)),
        (1.0, -0.75 * math.log(0.75) - 0.25 * math.log(0.25)),
        (math.inf, -math.log(0.75)),
    ]:
        attack = MaxRenyi(alpha=alpha, share=100)
        (found,) = attack(*by_hand(task, LOGITS, IDS))
        assert found.scores == pytest.approx([-(HALF + entropy) / 2])


def test_as_published_a_certain_model_is_not_quite(task: Task) -> None:
    sure = [[50.0, 0.0]] * 3
    (exact,) = MaxRenyi(alpha=0.5)(*by_hand(task, sure, IDS))
    (clamped,) = MaxRenyi(alpha=0.5, published=True)(*by_hand(task, sure, IDS))
    assert exact.scores == pytest.approx([0], abs=1e-10)
    assert clamped.scores == pytest.approx([-2 * math.log1p(1e-5)], rel=1e-3)


def test_a_picture_can_be_scored(task: Task) -> None:
    adversary, targets, truth = attacked(task, results=True)
    scores = MaxRenyi(slice="image")(adversary, targets)
    assert pooled_auroc(groups(scores, truth)).value == 1
