"""Numbers equal those of jax_privacy, where it can be had (``make test-twins``).

Only its module on audits is loaded, which needs no jax: from the folder that
TEST_TWINS names, as ``pip install --target`` leaves it. CycloneDX's schema lies there, too.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource

from privaudit import Auditor
from privaudit.auditing.stored_audit import save_audit
from privaudit.report.export import export_public
from privaudit.runs.run import load_run
from privaudit.statistics.epsilon.bound import IndependentRuns, OneRunCanaries
from privaudit.statistics.epsilon.many_runs import MultiSplit
from privaudit.statistics.epsilon.one_run import OneRunGuesses
from privaudit_labs.annexes.annex import annex_facts, make_annex
from privaudit_labs.bounds.gaussian_one_run import GaussianOneRun
from privaudit_tools.selftest.calibration import GaussianCanaries
from privaudit_tools.selftest.fixed_grid import FixedGrid

FOLDER = os.environ.get("TEST_TWINS", "")
PLACE = Path(FOLDER).resolve()  # before a test has a folder of its own
pytestmark = pytest.mark.skipif(not FOLDER, reason="make test-twins installs it")


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    place = PLACE / "jax_privacy" / "auditing.py"
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


def test_a_bill_of_materials_fits_the_schema_of_cyclonedx(tmp_path: Path) -> None:
    place = PLACE / "cyclonedx" / "schema" / "_res"
    schemas = [
        json.loads((place / f"{name}.SNAPSHOT.schema.json").read_text())
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    ]
    known = [(one["$id"], Resource.from_contents(one)) for one in schemas]
    check = Draft7Validator(schemas[0], registry=Registry().with_resources(known))
    rng = np.random.default_rng(0)
    scores = rng.normal(size=99) + 3, rng.normal(size=99)
    audit = Auditor.from_scores(*scores, sampling="coin")
    save_audit(audit, tmp_path / "mine")
    (tmp_path / "model").write_bytes(b"weights")
    models = [tmp_path / "model"]
    card = export_public(load_run(tmp_path / "mine"), tmp_path / "card", models=models)
    bom, _ = make_annex(annex_facts(str(card.folder)), "cyclonedx")
    assert [one.message for one in check.iter_errors(bom)] == []
    del bom["components"][0]["type"]
    assert [one.message for one in check.iter_errors(bom)] != []
