"""Distribution shift of models that write, on the runs of the end-to-end test."""

from typing import Any

import pytest

from privaudit import Run
from privaudit_labs.shift.distribution_shift import measure_shift
from tests.test_writers_end_to_end import fewer_scenes, runs

__all__ = ["fewer_scenes", "runs"]
pytestmark = pytest.mark.slow


def test_membership_is_what_training_adds_against_foreign_non_members(
    runs: dict[str, Run],
) -> None:
    """Nothing without training, and much to a model that memorised."""
    look: dict[str, Any] = {"attacks": ("token-loss",), "most": 40}
    (found,) = measure_shift(runs["untrained"], **look)
    assert found.beyond.estimate.value == 0
    (learned,) = measure_shift(runs["memorised"], **look)
    assert learned.beyond.estimate.excludes(0)
    assert learned.sentence.startswith("membership shows beyond the distribution shift")
    assert not found.sentence.startswith("membership")
    assert learned.blind.n == learned.foreign.n
    assert learned.foreign.value > 0.9
