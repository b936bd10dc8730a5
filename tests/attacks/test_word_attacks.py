"""What holds for every attack that reads a slice of words; a new one is tested by itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from privaudit.auditing.attack import ATTACKS, Attack
from privaudit.federation.trainer import Reconstruction, Task
from tests.attacks.word_world import Speaker, attacked
from tests.toy_federation import auroc_of

NAMES = [
    name
    for name in ATTACKS.names()
    if getattr(ATTACKS.find(name), "task", "") == "generation"
    and hasattr(ATTACKS.find(name), "slice")
]
WHOLE = {"slice": "instruction+description"}
OPTIONS: list[dict[str, Any]] = [{}, {**WHOLE, "all_positions": True}]
pytestmark = pytest.mark.parametrize("name", NAMES)


def make(name: str, **options: Any) -> Attack:
    return ATTACKS.find(name)(**options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_is_memorised_is_found_for_certain(
    name: str, options: dict[str, Any], task: Task
) -> None:
    adversary, targets, truth = attacked(task, results=True)
    scores = make(name, **options)(adversary, targets)
    assert auroc_of(scores, truth).value == 1
    for found, member in zip(scores, truth, strict=True):
        assert found.guesses[member].all()
        # Of 25 non-members: three standard errors.
        assert abs(found.guesses[~member].mean() - 0.5) <= 0.3 + 1e-9


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_nothing_is_found_where_nothing_is_known(
    name: str, options: dict[str, Any], task: Task
) -> None:
    adversary, targets, truth = attacked(task, results=False)
    scores = make(name, **options)(adversary, targets)
    found = auroc_of(scores, truth, confidence=0.999)
    assert found.low < 0.5 < found.high


def test_scores_are_finite_and_repeatable(name: str, task: Task) -> None:
    one, targets, _ = attacked(task, results=True)
    other, again, _ = attacked(task, results=True)
    first, second = make(name)(one, targets), make(name)(other, again)
    for a, b, target in zip(first, second, targets, strict=True):
        assert a.scores.shape == a.guesses.shape == (len(target.candidates),)
        assert np.isfinite(a.scores).all()
        np.testing.assert_array_equal(a.scores, b.scores)
        np.testing.assert_array_equal(a.guesses, b.guesses)


def test_scores_follow_their_candidates(name: str, task: Task) -> None:
    """Also under the same adversary, whose tables are kept."""
    adversary, targets, _ = attacked(task, results=True)
    plain = make(name)(adversary, targets)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    shuffled = [replace(t, candidates=t.candidates.pick(order)) for t in targets]
    mixed = make(name)(adversary, shuffled)
    for a, b in zip(plain, mixed, strict=True):
        np.testing.assert_allclose(b.scores, a.scores[order.numpy()], atol=1e-9)


def test_a_word_that_cannot_come_leaves_scores_finite(name: str, task: Task) -> None:
    adversary, targets, _ = attacked(task, results=True)
    bank = targets[0].reconstructed.model["bank"].clone()
    bank[:, :, :6] = -torch.inf
    muted = [
        replace(target, reconstructed=Reconstruction({"bank": bank}))
        for target in targets
    ]
    for found in make(name)(adversary, muted):
        assert np.isfinite(found.scores).all()


def test_a_second_attack_asks_no_model(
    name: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    adversary, targets, _ = attacked(task, results=True)
    make(name)(adversary, targets)
    monkeypatch.delattr(Speaker, "query")
    make(name, slice="instruction")(adversary, targets)
