"""What holds for every attack; a new file in attacks/ is tested here by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import ATTACKS, Scores, Target
from privaudit.federation.on_device import on_device
from privaudit.statistics.roc import pooled_auroc
from tests.contracts.conftest import Attacked
from tests.simulated_device import another_device, task_on

# Attacks that read words have models of words: tests/attacks/test_word_attacks.py.
NAMES = [n for n in ATTACKS.names() if ATTACKS.find(n).task != "generation"]  # type: ignore[attr-defined]
pytestmark = pytest.mark.parametrize("name", NAMES)


def groups(
    scores: Sequence[Scores], attacked: Attacked
) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = zip(scores, attacked.is_member, strict=True)
    return [(s.scores[truth], s.scores[~truth]) for s, truth in pairs]


def again(name: str, case: Attacked, targets: Sequence[Target]) -> list[Scores]:
    """Attack once more, with nothing remembered."""
    return ATTACKS.find(name)()(replace(case.adversary), targets)


def test_scores_are_finite_and_repeatable(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    case = attacked(True)
    second = again(name, case, case.targets)
    for a, b, target in zip(case.scores, second, case.targets, strict=True):
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
    for a, b in zip(case.scores, again(name, case, shuffled), strict=True):
        np.testing.assert_allclose(b.scores, a.scores[order.numpy()], atol=1e-4)


@pytest.mark.gpu
def test_models_on_another_device_get_the_same_scores(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    case = attacked(True)
    trainer: Any = replace(case.world.trainer, epochs=2)  # type: ignore[type-var]
    alone = replace(case.adversary, trainer=trainer)
    with another_device() as device:
        there = on_device(trainer, device)
        adversary = replace(alone, trainer=there, task=task_on(alone.task, device))
        (found,) = ATTACKS.find(name)()(adversary, case.targets[:1])
    (expected,) = ATTACKS.find(name)()(alone, case.targets[:1])
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3, atol=1e-4)


def test_a_memory_of_noise_is_found(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    case = attacked(True)
    uses_labels = getattr(ATTACKS.find(name), "uses_labels", True)
    found = pooled_auroc(groups(case.scores, case)).low > case.world.least
    # Where a model is released, labels are all there is to learn.
    assert found == (uses_labels or case.world.threat != "released")


def test_nothing_is_found_where_no_candidate_was_trained_on(
    name: str, attacked: Callable[[bool], Attacked]
) -> None:
    case = attacked(False)
    found = pooled_auroc(groups(case.scores, case))
    assert found.low < 0.5 < found.high
