"""What holds for every attack; a new file in attacks/ is tested here by itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privaudit.auditing.attack import ATTACKS
from privaudit.checks.contracts import OF_ATTACKS, AttackCase
from privaudit.federation.on_device import on_device
from privaudit.federation.trainer import Task
from tests.conftest import noisy_candidates, toy_records, with_noise
from tests.simulated_device import another_device, task_on
from tests.toy_federation import Play

# Attacks that read words have models of words: tests/attacks/test_word_attacks.py.
NAMES = [n for n in ATTACKS.names() if ATTACKS.find(n).task != "generation"]  # type: ignore[attr-defined]
pytestmark = pytest.mark.parametrize("name", NAMES)
CASES: dict[str, AttackCase] = {}  # for all contracts of an attack


@pytest.fixture
def case(name: str, task: Task, play: Play) -> AttackCase:
    if name not in CASES:
        reference = replace(task, public=with_noise(toy_records(160, seed=1), 99))
        candidates = noisy_candidates(task.clients, 24, 50)
        others = {
            who: with_noise(toy_records(12, seed=70 + number), 7 + number)
            for number, who in enumerate(task.clients)
        }
        CASES[name] = AttackCase(name, reference, play, candidates, others)
    return CASES[name]


@pytest.mark.parametrize("contract", OF_ATTACKS)
def test_an_attack_keeps_to_its_contract(
    case: AttackCase, contract: Callable[[AttackCase], None]
) -> None:
    contract(case)


@pytest.mark.gpu
def test_models_on_another_device_get_the_same_scores(
    name: str, case: AttackCase
) -> None:
    found = case.on(True)
    trainer: Any = replace(found.adversary.trainer, epochs=2)  # type: ignore[type-var]
    alone = replace(found.adversary, trainer=trainer)
    with another_device() as device:
        there = on_device(trainer, device)
        adversary = replace(alone, trainer=there, task=task_on(alone.task, device))
        (one,) = ATTACKS.find(name)()(adversary, found.targets[:1])
    (expected,) = ATTACKS.find(name)()(alone, found.targets[:1])
    np.testing.assert_allclose(one.scores, expected.scores, rtol=1e-3, atol=1e-4)
