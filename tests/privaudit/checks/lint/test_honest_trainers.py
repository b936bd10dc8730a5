"""What a trainer records of itself agrees with what it does, in every mode."""

from typing import Any

import pytest

from privaudit.checks.lint.clipped_norms import clipped_norms
from privaudit.checks.lint.finding import Rule
from privaudit.checks.lint.noise_as_claimed import noise_as_claimed
from privaudit.checks.lint.poisson_sampling import poisson_sampling
from privaudit.checks.lint.residuals import client_residuals, server_residuals
from privaudit.checks.lint.steps_counted import steps_counted
from tests.privaudit.checks.lint.conftest import Look

PAPER = {"mode": "published-paper", "epsilon": 0.4}
MODES: list[tuple[str, dict[str, Any]]] = [
    ("dp-fpl", {"epsilon": 8.0}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "client", "rank": "full"}),
    ("dp-fpl", {"epsilon": 8.0, "noise_at": "distributed"}),
    ("dp-fpl", PAPER | {"clip": "sample"}),
    *[(f"dp-{m}", {"epsilon": 8.0}) for m in ("promptfl", "fedotp", "fedpgp")],
    *[(f"dp-{m}", PAPER) for m in ("fpl", "promptfl", "fedotp", "fedpgp")],
    *[
        (f"dp-{m}", {"mode": "published-code", "epsilon": 0.4})
        for m in ("fpl", "promptfl", "fedotp", "fedpgp")
    ],
    ("dp-fedpgp", PAPER | {"clip": "sample"}),
    ("dp-promptfl", PAPER | {"clip": "sample"}),
    ("dp-promptfl", PAPER | {"epochs": 2, "momentum": 0.9}),
    ("dp-promptfl", {"mode": "published-code", "epsilon": 0.4, "epochs": 2, "mu": 0.5}),
    ("dp-pfedmoap", {"epsilon": 25.0, "delta": 0.05}),
    ("dp-pfedmoap", {"mode": "published-paper", "epsilon": 25.0, "delta": 0.05}),
]


@pytest.mark.parametrize(("name", "settings"), MODES, ids=str)
def test_clips_noises_samples_and_counts_as_it_says(
    name: str, settings: dict[str, Any], look: Look
) -> None:
    evidence = look(name, **settings)
    rules: tuple[Rule, ...] = (
        clipped_norms,
        noise_as_claimed,
        steps_counted,
        poisson_sampling,
    )
    assert [found for rule in rules for found in rule(evidence)] == []
    shown = [*client_residuals(evidence), *server_residuals(evidence)]
    assert {r.release for r in shown} == {
        event.release for _, event in evidence.events() if event.noise_multiplier > 0
    }
