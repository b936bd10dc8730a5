"""Small runs of two trainers over two seeds, each audited; a run that is attacked once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from privaudit import Auditor, train
from privaudit.auditing.scenario import find_scenario
from privaudit.auditing.stored_audit import save_audit
from privaudit.runs.run import Run


def attack_one_client(run: Run, scenario: str, *attacks: str) -> None:
    """Attack a client by some of a scenario's attacks: their AUROCs are numbers."""
    whole = find_scenario(scenario, 0)
    chosen = {name: whole.attacks[name] for name in attacks}
    audit = Auditor(run).attack(replace(whole, attacks=chosen, dominates=()), clients=1)
    assert all(0 <= found.auroc.value <= 1 for found in audit.results.values())


def audit_two_seeds(folder: Path, settings: Mapping[str, Any] | None = None) -> None:
    """Train PromptFL, with settings, and zero-shot on seeds 0 and 1, and audit them."""
    for seed in (0, 1):
        for trainer, chosen in (("promptfl", settings or {}), ("zero-shot", {})):
            run = train(
                trainer,
                folder=folder,
                name=f"{trainer}-{seed}",
                rounds=1,
                clients=3,
                seed=seed,
                settings=chosen,
            )
            save_audit(Auditor(run).attack(shadows=0))
