"""A stored audit made again, as its audit.json and scores.npz say that it was asked."""

from typing import Any, Literal

from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.named_attacks import restore_attack, shadows_of
from privaudit.auditing.scenario import SCENARIOS
from privaudit.auditing.shadow_models.budget import budget_text
from privaudit.auditing.storage.load import StoredAudit
from privaudit.federated.participants import trained_clients
from privaudit.federated.runs.runs import Run
from privaudit.statistics.progress import Watcher


def attack_again(
    stored: StoredAudit, run: Run, watcher: Watcher | None = None
) -> Audit:
    """Attack a run as a stored audit was made, which no log counts."""
    asked = asked_again(stored)
    return Auditor(run).attack(
        stored.scenario, **asked, watcher=watcher, is_logged=False
    )


def asked_again(stored: StoredAudit) -> dict[str, Any]:
    """Return the arguments that give the same audit again.

    Raises:
        UnknownNameError: The scenario or an attack is not installed.
        PluginError: It is another package's, and cannot be imported.
        ConfigError: An attack was an object of somebody's own.
    """
    own_attacks = SCENARIOS.find(stored.scenario)().attacks
    settings = {name: stored.leak(name)["settings"] for name in stored.attacks}
    counts = [
        shadows_of(text) for name, text in settings.items() if name in own_attacks
    ]
    shadows = next((count for count in counts if count is not None), 0)
    named = {
        name: restore_attack(name, settings[name])
        for name in stored.contents["leaks"]
        if name not in own_attacks and " as " not in name
    }
    budget = stored.contents.get("budget")
    return {
        "attacks": named,
        "clients": _attacked(stored),
        "shadows": None if budget else shadows,
        "budget": budget_text(float(budget["seconds"])) if budget else None,
        "seed": stored.contents.get("seed", 0),
    }


def _attacked(stored: StoredAudit) -> int | Literal["all"]:
    """Return how many clients shadow models were trained for: the fewest attacked."""
    counts = [len(stored.clients(attack)) for attack in stored.attacks]
    threat = stored.contents.get("threat", "server")
    everyone = trained_clients(stored.run, threat)
    return "all" if min(counts) == len(everyone) else min(counts)
