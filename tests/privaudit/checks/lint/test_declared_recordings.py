"""Wrong recordings have an error that names the fault; honest ones have none.

33 wrong ones and 28 honest ones.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from privaudit import Run
from privaudit.checks.lint import lint
from privaudit.checks.lint.evidence import Evidence
from privaudit.checks.lint.noise import FIRST, LEVEL, SEEDS, correlation_p, find_seed
from privaudit.privacy.certificate import certify
from privaudit.privacy.events import Claim
from privaudit.runs.round_metrics import certify_again
from tests.privaudit.checks.lint.declared_recordings import COUNT, HONEST, WRONG, Loop


def errors(run: Run) -> set[str]:
    return {found.rule for found in lint(run) if found.severity == "error"}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_recording_has_an_error_that_names_the_fault(
    name: str, tmp_path: Path
) -> None:
    loop, rule = WRONG[name]
    run = loop.record(tmp_path / "run")
    assert rule in errors(run)
    assert {proof["epsilon"] for proof in run.privacy["certified"].values()} == {None}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_recording_is_not_refused_and_its_epsilon_is_declared(
    name: str, tmp_path: Path
) -> None:
    run = HONEST[name].record(tmp_path / "run")
    assert errors(run) == set()
    evidence = Evidence.of(run)
    for view, stated in evidence.certified.items():
        assert stated.epsilon is None
        assert stated.declared == certify(evidence.rounds, view, 1e-5).epsilon


def test_a_clip_norm_that_moves_without_noise_is_said(tmp_path: Path) -> None:
    """As an adaptive one does; a count of its own covers it."""
    evidence = Evidence.of(HONEST["server noise"].record(tmp_path / "run"))
    moving = [
        [replace(event, clip_norm=1.0 + index) for event in events]
        for index, events in enumerate(evidence.rounds)
    ]
    said = [f.sentence for f in lint(replace(evidence, rounds=moving))]
    assert any(
        "clip norm of the global release moves from 1 to 4" in one for one in said
    )
    covered = [[*events, COUNT] for events in moving]
    said = [f.sentence for f in lint(replace(evidence, rounds=covered))]
    assert not any("clip norm of the global release moves" in one for one in said)


def test_without_a_claim_lint_says_what_is_declared(tmp_path: Path) -> None:
    run = HONEST["server noise, nobody claims an epsilon"].record(tmp_path / "run")
    (note,) = [f for f in lint(run) if f.rule == "claim-covers-certificate"]
    declared = run.privacy["certified"]["released"]["declared"]
    assert note.severity == "note"
    assert f"released {declared:.3g}" in note.sentence
    claimed = lint(run, claim=Claim(declared / 2, 1e-5, "mine"))
    assert "error" in [f.severity for f in claimed]


def test_a_recordings_mechanisms_are_accounted_for_again(tmp_path: Path) -> None:
    run = HONEST["client noise"].record(tmp_path / "run")
    assert certify_again(run) == run.privacy


def test_noise_as_declared_is_called_anything_else_in_no_seed(tmp_path: Path) -> None:
    """Every statistical rule has a level of 1e-6, so that chance shows in none of 20."""
    for seed in range(10):
        for name in ("server noise", "client noise"):
            loop = HONEST[name]
            seeded = Loop(noise_at=loop.noise_at, seed=100 + seed, rounds=3, clients=3)
            assert errors(seeded.record(tmp_path / f"{name} {seed}")) == set()


@pytest.mark.parametrize("size", [FIRST, 20, 31, 32, 33, 240])
def test_every_generator_is_known_by_what_it_draws_first(size: int) -> None:
    generator = torch.Generator().manual_seed(7)
    drawn = {
        "torch.manual_seed(7)": torch.randn(size, generator=generator).numpy(),
        "numpy.random.seed(7)": np.random.RandomState(7).standard_normal(size),
        "numpy.random.default_rng(7)": np.random.default_rng(7).standard_normal(size),
    }
    for call, values in drawn.items():
        assert find_seed(-3 * values, LEVEL) == call


def test_a_seed_that_nobody_tries_is_not_named() -> None:
    assert 987_654_321 not in SEEDS
    values = np.random.default_rng(987_654_321).standard_normal(240)
    assert find_seed(values, LEVEL) == ""


def test_correlations_of_independent_draws_are_as_rare_as_is_said() -> None:
    """Null calibration: within four standard errors of the level."""
    rng = np.random.default_rng(0)
    draws, size = 4000, 12
    rows = rng.standard_normal((2, draws, size))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    values = np.array(
        [correlation_p(float(c), size) for c in (rows[0] * rows[1]).sum(axis=1)]
    )
    for level in (0.01, 0.1, 0.5):
        error = (level * (1 - level) / draws) ** 0.5
        assert abs((values < level).mean() - level) < 4 * error
