"""``max_auroc``: no attack that was made may exceed it."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privaudit import load_run
from privaudit.auditing.storage.load import StoredAudit, read_audit
from privaudit.checks.gate.checks import GateCheck
from privaudit.checks.gate.gate import gate
from privaudit.checks.gate.settings import GateSettings

GATE = import_module("privaudit.checks.gate.gate")
Change = Callable[[np.ndarray, np.ndarray], np.ndarray]


def limits(run: str, max_auroc: float, **more: Any) -> list[GateCheck]:
    found = gate(run, None, GateSettings(max_auroc=max_auroc, shadows=0, **more))
    return [check for check in found.checks if isinstance(check, GateCheck)]


def shifted(by: float, seed: int = 0) -> Change:
    """Draw scores, of members so much higher."""

    def change(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return by * truth + rng.standard_normal(len(truth))

    return change


def rescored(attack: str, change: Change) -> Callable[..., StoredAudit]:
    """Return a reader of audits that changes one attack's scores."""

    def read(*args: Any) -> StoredAudit:
        audit = read_audit(*args)
        columns = {name: dict(found) for name, found in audit.columns.items()}
        own = columns[attack]
        own["scores"] = change(own["scores"], own["is_member"])
        return replace(audit, columns=columns)

    return read


def test_every_attack_that_was_made_is_held_to_it(runs: Path) -> None:
    audit = read_audit(load_run("tuned"), "server-reconstruct")
    found = limits("tuned", 0.9, attacks=("loss-threshold",))
    assert len(audit.attacks) > 3
    assert [c.name for c in found] == [f"{name} AUROC" for name in audit.attacks]


def test_an_attack_that_is_not_the_headline_is_a_regression_and_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(0.8)))
    found = gate("plain", None, GateSettings(max_auroc=0.6, shadows=0))
    bad = [check.name for check in found.checks if check.outcome == "regression"]
    assert (found.exit_code, bad) == (1, ["entropy AUROC"])
    (said,) = (c.sentence for c in found.checks if c.outcome == "regression")
    assert said.startswith("Regression: entropy AUROC is 0.7")
    assert "above the limit of 0.6" in said


def test_all_must_be_below_to_pass(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {check.outcome for check in limits("plain", 0.6)} == {"pass"}
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(0.35)))
    found = gate("plain", None, GateSettings(max_auroc=0.6, shadows=0))
    undecided = [c.name for c in found.checks if c.outcome == "underpowered"]
    assert (found.exit_code, undecided) == (3, ["entropy AUROC"])


def test_turned_scores_do_not_pass(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members with the lower scores are as distinguishable as with the higher ones."""
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(-3.0)))
    found = gate("plain", None, GateSettings(max_auroc=0.6, shadows=0))
    (bad,) = (check for check in found.checks if check.outcome == "regression")
    assert bad.name == "entropy AUROC"
    assert isinstance(bad, GateCheck)
    assert bad.estimate.low > 0.9
    assert "with their sign turned" in bad.sentence
    assert gate("plain", None, GateSettings(max_auroc=0.999, shadows=0)).exit_code == 0


def test_holm_counts_all_attacks(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit at 95 % by itself, and not among so many."""
    monkeypatch.setattr(GATE, "read_audit", rescored("entropy", shifted(0.3, seed=1)))
    (alone,) = (c for c in limits("plain", 0.5) if c.name == "entropy AUROC")
    limit = alone.estimate.low - 0.002
    (among,) = (c for c in limits("plain", limit) if c.name == "entropy AUROC")
    assert among.estimate.low > limit
    assert among.outcome == "underpowered"
    assert "not after Holm's correction" in among.sentence
    (strict,) = (c for c in limits("plain", limit - 0.05) if c.name == "entropy AUROC")
    assert strict.outcome == "regression"


def test_attacks_on_the_servers_own_model_count_too(runs: Path) -> None:
    """Whoever leaves them out does not see half of what a server can do."""
    audit = read_audit(load_run("tuned"), "server-reconstruct")
    stored = runs / "tuned" / "audits" / "server-reconstruct" / "audit.json"
    held = json.loads(stored.read_text())
    assert len(audit.attacks) == len(held["leaks"]) + len(held["server_model"])
