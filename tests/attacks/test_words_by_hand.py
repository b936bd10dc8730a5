"""Each attack that reads words, on one answer of three words, by hand."""

import math
import zlib

import pytest

from privaudit.attacks.token_attacks import (
    MaxProbGap,
    MaxRenyi,
    MinK,
    MinKPlusPlus,
    ModRenyi,
    PerplexityZlib,
    TokenLoss,
)
from privaudit.auditing.attack import Attack
from privaudit.federation.trainer import Task
from tests.attacks.word_world import attacked, by_hand
from tests.toy_federation import auroc_of

# Two words: both as likely, then the right one 3 to 1. The first id is expected by
# nobody, and what follows the last is not known.
LOGITS = [[0.0, 0.0], [math.log(3), 0.0], [9.0, 0.0]]
IDS = [1, 0, 0]
LOG = (math.log(0.5) + math.log(0.75)) / 2
# Rényi entropies of both words, by order; of the first it is log 2 in any order.
HALF = math.log(2)
THREE_QUARTERS = {
    0.5: 2 * math.log(math.sqrt(0.75) + 0.5),
    1.0: -0.75 * math.log(0.75) - 0.25 * math.log(0.25),
    2.0: -math.log(10 / 16),
    math.inf: -math.log(0.75),
}


def zipped(text: str) -> int:
    return len(zlib.compress(text.encode()))


CASES: list[tuple[Attack, float]] = [
    (TokenLoss(), LOG),
    (MinK(share=0), math.log(0.5)),
    (MinK(share=50), math.log(0.5)),
    (MinK(share=100), LOG),
    # At 3 to 1 log p is log 3 / 4 above its mean, and deviates by √3 log 3 / 4.
    (MinKPlusPlus(share=0), 0.0),
    (MinKPlusPlus(share=100), 1 / math.sqrt(3) / 2),
    (PerplexityZlib(slice="description"), LOG / zipped("aaaaaaaa")),
    (PerplexityZlib(slice="instruction+description"), LOG / zipped("what? aaaaaaaa")),
    # For two words it is 2 (1 - p) s(p), twice the missed times the surprise.
    (ModRenyi(alpha=2.0), -(0.5 + 0.125) / 2),
    (ModRenyi(alpha=1.0), -(math.log(2) - 2 * 0.25 * math.log(0.75)) / 2),
    (ModRenyi(alpha=0.5), math.sqrt(0.5) - 1 + (math.sqrt(0.75) - 1) / 2),
    (MaxRenyi(share=0), -HALF),
    (MaxRenyi(share=60), -HALF),
    *(
        (MaxRenyi(alpha=alpha, share=100), -(HALF + entropy) / 2)
        for alpha, entropy in THREE_QUARTERS.items()
    ),
    (MaxRenyi(share=100), -(HALF + THREE_QUARTERS[2.0]) / 2),
    (MaxProbGap(), (0 + 0.5) / 2),
    (MaxProbGap(published=True), math.log(3) / 2),  # a gap of logarithms
]


@pytest.mark.parametrize(("attack", "expected"), CASES, ids=str)
def test_scores_by_hand(attack: Attack, expected: float, task: Task) -> None:
    (found,) = attack(*by_hand(task, LOGITS, IDS))
    assert found.scores == pytest.approx([expected])


def test_as_published_a_certain_model_is_not_quite(task: Task) -> None:
    sure = [[50.0, 0.0]] * 3
    (exact,) = MaxRenyi(alpha=0.5)(*by_hand(task, sure, IDS))
    (clamped,) = MaxRenyi(alpha=0.5, published=True)(*by_hand(task, sure, IDS))
    assert exact.scores == pytest.approx([0], abs=1e-10)
    assert clamped.scores == pytest.approx([-2 * math.log1p(1e-5)], rel=1e-3)


@pytest.mark.parametrize("attack", [MaxRenyi(slice="image"), MaxProbGap(slice="image")])
def test_a_picture_can_be_scored(attack: Attack, task: Task) -> None:
    adversary, targets, truth = attacked(task, results=True)
    assert auroc_of(attack(adversary, targets), truth).value == 1
