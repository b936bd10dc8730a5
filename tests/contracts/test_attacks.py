"""What holds for every attack; a new file in attacks/ is tested here by itself."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import ATTACKS, Attack, Scores
from privaudit.statistics.roc import pooled_auroc
from tests.contracts.conftest import Attacked

# Attacks that read words have models of words: tests/attacks/test_word_attacks.py.
NAMES = [n for n in ATTACKS.names() if ATTACKS.find(n).reads != "words"]  # type: ignore[attr-defined]
pytestmark = pytest.mark.parametrize("name", NAMES)
SMALL = {"shadow": {"shadows": 50}}
# Noise learned by heart is in the labels: tests/attacks has what these must find.
LABEL_FREE = {"entropy"}
# Twelve gradients in fifteen dimensions are not told apart for certain; one is.
LEAST = {"update-alignment": 0.5}


def make(name: str) -> Attack:
    return ATTACKS.find(name)(**SMALL.get(name, {}))


def groups(
    scores: list[Scores], attacked: Attacked
) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = zip(scores, attacked.is_member, strict=True)
    return [(s.scores[truth], s.scores[~truth]) for s, truth in pairs]


def test_scores_are_finite_and_repeatable(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    one, other = attacked(True), attacked(True)
    first = make(name)(one.adversary, one.targets)
    again = make(name)(other.adversary, other.targets)
    for a, b, target in zip(first, again, one.targets, strict=True):
        assert a.scores.shape == a.guesses.shape == (len(target.candidates),)
        assert np.isfinite(a.scores).all()
        np.testing.assert_array_equal(a.scores, b.scores)
        np.testing.assert_array_equal(a.guesses, b.guesses)


def test_scores_follow_their_candidates(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    case = attacked(True)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    shuffled = [replace(t, candidates=t.candidates.pick(order)) for t in case.targets]
    plain = make(name)(case.adversary, case.targets)
    mixed = make(name)(attacked(True).adversary, shuffled)
    for a, b in zip(plain, mixed, strict=True):
        np.testing.assert_allclose(b.scores, a.scores[order.numpy()], atol=1e-4)


def test_a_memory_of_noise_is_found(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    if name in LABEL_FREE:
        pytest.skip("does not look at labels, and they are all there is to learn here")
    case = attacked(True)
    found = pooled_auroc(groups(make(name)(case.adversary, case.targets), case))
    assert found.low > LEAST.get(name, 0.6)  # of 36 and 36, about 0.8 to 0.9


def test_nothing_is_found_where_no_candidate_was_trained_on(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    case = attacked(False)
    found = pooled_auroc(groups(make(name)(case.adversary, case.targets), case))
    assert found.low < 0.5 < found.high
