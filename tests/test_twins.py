"""Numbers equal those of jax_privacy, where it can be had (``make test-twins``).

Only its module on audits is loaded, which needs no jax: from the folder that
TEST_TWINS names, as ``pip install --target`` leaves it.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from privaudit.statistics.epsilon.bound import IndependentRuns, OneRunCanaries
from privaudit.statistics.epsilon.many_runs import FixedGrid, MultiSplit
from privaudit.statistics.epsilon.one_run import OneRunGuesses
from privaudit_labs.bounds.gaussian_one_run import GaussianOneRun
from privaudit_tools.selftest.calibration import GaussianCanaries

FOLDER = os.environ.get("TEST_TWINS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="make test-twins installs it")


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    place = Path(FOLDER) / "jax_privacy" / "auditing.py"
    spec = importlib.util.spec_from_file_location("their_auditing", place)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["their_auditing"] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[(200, 1.0), (200, 4.0), (1000, 4.0), (1001, 8.0)])
def audit(
    request: pytest.FixtureRequest, theirs: ModuleType
) -> tuple[np.ndarray, np.ndarray, Any]:
    n, epsilon = request.param
    rng = np.random.default_rng(n)
    is_member = rng.random(n) < 0.5
    scores = GaussianCanaries(epsilon).score(is_member[None], rng)[0]
    return (
        scores,
        is_member,
        theirs.CanaryScoreAuditor(scores[is_member], scores[~is_member]),
    )


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
def test_clopper_pearson_at_a_threshold(
    theirs: ModuleType, audit: tuple[np.ndarray, np.ndarray, Any], delta: float
) -> None:
    scores, is_member, auditor = audit
    for threshold in (0.0, 0.5, 1.0):
        ours = FixedGrid(thresholds=(threshold,), delta=delta)
        wanted = auditor.epsilon_clopper_pearson(
            0.05, delta, one_sided=False, threshold_strategy=theirs.Explicit(threshold)
        )
        found = ours(IndependentRuns(scores, is_member)).value
        assert found == pytest.approx(max(wanted, 0.0), abs=2e-6)


def test_the_median_of_many_splits(
    theirs: ModuleType, audit: tuple[np.ndarray, np.ndarray, Any]
) -> None:
    """Halves are drawn otherwise, so medians agree as far as splits allow."""
    scores, is_member, auditor = audit
    ours = MultiSplit(splits=401)(IndependentRuns(scores, is_member)).value
    wanted = auditor.epsilon_clopper_pearson(
        0.05, one_sided=False, threshold_strategy=theirs.MultiSplit(400, seed=0)
    )
    assert ours == pytest.approx(max(wanted, 0.0), abs=0.08)


@pytest.mark.parametrize("guesses", [5, 40, 100])
def test_one_run_with_guesses_in(
    theirs: ModuleType, audit: tuple[np.ndarray, np.ndarray, Any], guesses: int
) -> None:
    """They guess at what lies above a threshold: here, at the highest scores."""
    scores, is_member, auditor = audit
    falling = np.sort(scores)[::-1]
    between = float(falling[guesses - 1 : guesses + 1].mean())
    strategy = theirs.Explicit(between)
    canaries = OneRunCanaries(scores, is_member)
    for make, name, tolerance in (
        (OneRunGuesses, "epsilon_one_run", 2e-6),
        (GaussianOneRun, "epsilon_one_run_fdp", 1e-5),
    ):
        wanted = getattr(auditor, name)(0.05, 1e-5, threshold_strategy=strategy)
        bound = make(guesses_in=guesses, guesses_out=0, delta=1e-5)
        found = bound(canaries).value
        assert found == pytest.approx(wanted, abs=tolerance), name
