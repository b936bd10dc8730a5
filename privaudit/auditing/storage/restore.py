"""An audit made whole again from what is stored: no model is asked, nothing trained.

The figures are computed anew from the stored scores and the truth, and held against
what audit.json says of them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from privaudit.auditing.attack import Attack
from privaudit.auditing.attack_result import AttackResult, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_part import stored_parts
from privaudit.auditing.named_attacks import restore_attack
from privaudit.auditing.scenario import SCENARIOS, Scenario
from privaudit.auditing.shadow_models.budget import ShadowBudget
from privaudit.auditing.storage.load import StoredAudit
from privaudit.core.arrays import DAMAGE
from privaudit.core.errors import (
    ConfigError,
    PluginError,
    TranscriptError,
    UnknownNameError,
    shown,
)
from privaudit.core.parameters import from_plain
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import METRICS, Utility
from privaudit.statistics.estimate import Estimate

Json = Mapping[str, Any]
_CLOSE = 1e-6  # between an AUROC as stored and as the scores give it


def restore_audit(stored: StoredAudit) -> Audit:
    """Return the audit that was saved.

    Raises:
        TranscriptError: audit.json is damaged or of another version, or its figures
            are not those of the scores.
    """
    try:
        return _restore(stored)
    except (*DAMAGE, ConfigError) as error:
        place = stored.run.path / "audits" / stored.scenario / "audit.json"
        raise TranscriptError(
            f"{place} cannot be restored ({error!r}): it was altered, or is of "
            f"another version. Make it again with `privaudit attack {stored.run.name} "
            f"--scenario {stored.scenario}`."
        ) from None


def _restore(stored: StoredAudit) -> Audit:
    _refuse_unknown(stored.run, stored.contents)
    contents = stored.contents
    scored = {name: _leak(stored, name) for name in stored.attacks}
    results = {name: scored[name] for name in contents["leaks"]}
    return Audit(
        run=stored.run,
        scenario=_scenario(stored, results),
        results=results,
        utility=from_plain(Utility | None, contents["utility"]),
        seed=int(contents["seed"]),
        budget=from_plain(ShadowBudget | None, contents.get("budget")),
        computed=dict(contents.get("computed", {})),
        parts={
            part.name: part.from_json(contents[part.entry], scored)
            for part in stored_parts(contents)
        },
    )


def _refuse_unknown(run: Run, contents: Json) -> None:
    """Refuse a threat model or a metric that no page could tell of."""
    view = str(contents["threat"]).partition(":")[0]
    if view not in run.privacy["certified"]:
        raise ValueError(f"there is no threat model {shown(view)}")
    if contents["utility"] is None:
        return
    metric = contents["utility"]["metric"]
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"there is no metric {shown(metric)}")


def _leak(stored: StoredAudit, attack: str) -> AttackResult:
    """Return what the scores say, if audit.json says the same."""
    said = stored.leak(attack)
    result = evaluate_scores(
        said["attack"],
        said["settings"],
        said["threshold"],
        stored.clients(attack),
        str(said.get("package", "")),
        stored.run.sampling,
    )
    there = Estimate.from_dict(said["auroc"])
    for name in ("value", "low", "high"):
        pair = getattr(there, name), getattr(result.auroc, name)
        if not math.isclose(*pair, abs_tol=_CLOSE) and not all(map(math.isnan, pair)):
            raise ValueError(
                f"{attack} has the AUROC {there}, and its scores give {result.auroc}"
            )
    return result


def _scenario(stored: StoredAudit, results: Mapping[str, AttackResult]) -> Scenario:
    """Return the scenario as it was played; one that is no more has no attacks."""
    try:
        plan = SCENARIOS.find(stored.scenario)()
    except (UnknownNameError, PluginError):
        plan = Scenario(stored.scenario, "", "", {})
    made = {name: _attack(leak, plan) for name, leak in results.items()}
    known = {name: attack for name, attack in made.items() if attack is not None}
    question, threat = stored.contents["question"], stored.contents["threat"]
    if threat == "server-aggregate":
        plan = plan.where_masked()  # if that is not what the scenario asks for anyhow
    return replace(plan, question=question, threat=threat, attacks=known)


def _attack(leak: AttackResult, plan: Scenario) -> Attack | None:
    """Return an attack as it was made, or as its scenario makes it now; else None."""
    if " as " in leak.attack:  # of a weaker adversary's scenario
        return None
    try:
        return restore_attack(leak.attack, leak.settings)
    except (ConfigError, PluginError):
        return plan.attacks.get(leak.attack)
