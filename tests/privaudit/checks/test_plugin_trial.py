"""Wrong trainers of other packages are refuted by a trial; honest ones are not.

23 wrong ones (20 were asked for): before, lint had an error for 3 of them, and for two of
those by a false alarm that an honest one had as well.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from privaudit.checks.plugin_trial import try_mechanisms
from privaudit.core.errors import TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import Task
from privaudit.runs.config import build_trainer
from tests.privaudit.checks.lint.conftest import TOY
from tests.privaudit.checks.lint.declared_trainers import HONEST, WRONG

ASKED: dict[str, Any] = {"keys": Seeds(0), "seconds": math.inf}  # machines are busy
BUILT_IN: dict[str, dict[str, Any]] = {
    "dp-promptfl": {"epsilon": 8.0},
    "dp-fpl": {"epsilon": 8.0, "noise_at": "client"},
    "dp-fedpt": {"epsilon": 8.0, "epochs": 1, "noise_by": "server"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_trainer_that_does_otherwise_than_it_says_is_refuted(
    name: str, task: Task
) -> None:
    found = try_mechanisms(WRONG[name], task, most=250, **ASKED)
    assert len(found.faults) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_a_trainer_that_does_as_it_says_is_not(name: str, task: Task) -> None:
    found = try_mechanisms(HONEST[name], task, most=100, **ASKED)
    assert found.faults == ()
    assert found.runs == 100
    assert "proves nothing" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_mechanisms_pass_the_trial_that_others_are_given(
    name: str, task: Task
) -> None:
    trainer = build_trainer(name, TOY.get(name, {}) | BUILT_IN[name])
    assert try_mechanisms(trainer, task, most=100, **ASKED).faults == ()


def test_without_noise_there_is_nothing_to_try(task: Task) -> None:
    found = try_mechanisms(build_trainer("promptfl", {"epochs": 1}), task)
    assert (found.runs, found.faults) == (0, ())
    assert "nothing can be tried out" in str(found)


def test_noise_that_is_not_there_is_found_at_once(task: Task) -> None:
    (fault,) = try_mechanisms(WRONG["noise is not added"], task, **ASKED).faults
    assert "the same under every secret key" in fault


def test_too_few_public_records_are_refused(task: Task) -> None:
    small = replace(task, public=task.public.pick(torch.arange(5)))
    with pytest.raises(TooFewRecordsError, match="14 public records, and there are 5"):
        try_mechanisms(HONEST["clients"], small)


def test_a_trainer_that_is_too_slow_is_not_tried_for_hours(task: Task) -> None:
    found = try_mechanisms(HONEST["clients"], task, seconds=1e-3)
    assert (found.too_slow, found.runs, found.faults) == (True, 0, ())
    assert "Give the trial more time" in str(found)
