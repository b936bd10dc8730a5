"""What the labs add to the bounds: found by name, and no bound for every mechanism.

What holds of any bound is asked of these by the package's own tests, which
``make test-labs`` runs beside these: ``tests/privaudit/statistics/epsilon``.
"""

import numpy as np
import pytest

from privaudit_tools.selftest.calibration import (
    RandomisedResponse,
    coverage,
    standard_bounds,
)
from tests.privaudit.auditing.parts.test_one_run import audited

GAUSSIAN = ("GaussianFit", "GaussianOneRun", "GaussianScores")


def test_they_are_found_by_their_entry_points() -> None:
    assert tuple(standard_bounds(10))[-3:] == GAUSSIAN


@pytest.mark.parametrize("name", GAUSSIAN)
def test_what_assumes_a_gaussian_is_beyond_randomised_response(
    name: str, rng: np.random.Generator
) -> None:
    """It passes the null and is still no bound: why it may not refute."""
    bound = standard_bounds(1000)[name]
    assert not bound.can_refute
    assert coverage(bound, RandomisedResponse(4.0), 1000, 200, rng).value > 0.9


def test_they_stand_beside_the_bounds_of_an_audit_and_leave_its_verdict_alone() -> None:
    rng = np.random.default_rng(0)
    coins = rng.random(400) < 0.5
    found = audited(coins + 0.1 * rng.random(400), coins)
    informing = [one.method for one in found.others if not one.can_refute]
    assert len(found.others) == 3
    assert [method.split()[0] for method in informing] == ["Gaussian", "two"]
    assert found.verdict.kind == "REFUTED"
    assert max(one.value for one in found.others) > found.bound.value
