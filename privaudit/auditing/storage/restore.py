"""An audit made whole again from what is stored: no model is asked, nothing trained.

The figures are computed anew from the stored scores and the truth, and held against
what audit.json says of them.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from privaudit.auditing.attack_result import AttackResult, evaluate_scores
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.closeness import Closeness
from privaudit.auditing.parts.leakage_by_round import RoundLeak
from privaudit.auditing.parts.linkage_gain import Linking
from privaudit.auditing.parts.one_run import OneRunAudit
from privaudit.auditing.parts.source_inference import SourceInference
from privaudit.auditing.scenario import Scenario, find_scenario
from privaudit.auditing.storage.load import SERVER, StoredAudit
from privaudit.core.arrays import DAMAGE
from privaudit.core.errors import ConfigError, TranscriptError, UnknownNameError, shown
from privaudit.federated.runs.utility import METRICS, Utility
from privaudit.federated.threat_models import find_threat
from privaudit.statistics.claim import ClaimVerdict
from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.epsilon.bound import EpsilonBound
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
            f"{place} cannot be told again ({error!r}): it was altered, or is of "
            f"another version. Make it again with `privaudit attack {stored.run.name} "
            f"--scenario {stored.scenario}`."
        ) from None


def _restore(stored: StoredAudit) -> Audit:
    _refuse_unknown(stored.contents)
    contents, reconstructed = stored.contents, stored.contents["rebuilt"]
    found = {name: _leak(stored, name) for name in stored.attacks}
    results = {name: found[name] for name in contents["leaks"]}
    return Audit(
        run=stored.run,
        scenario=_scenario(stored, results),
        results=results,
        utility=_utility(contents["utility"]),
        missing=tuple(reconstructed["missing"]),
        staleness=int(reconstructed["staleness"]),
        closeness=_maybe(_closeness, reconstructed["closeness"]),
        seed=int(contents["seed"]),
        linking=_maybe(_linking, contents["linking"]),
        aggregate={n: found[f"{SERVER}{n}"] for n in contents["server_model"]},
        rounds=tuple(_rounds(entry) for entry in contents["rounds"]),
        source=_maybe(_source, contents["source"]),
        one_run=_maybe(_one_run, contents["one_run"]),
    )


def _refuse_unknown(contents: Json) -> None:
    """Refuse a threat model or a metric that no page could tell of.

    Raises:
        ValueError: There is none of that name.
    """
    find_threat(str(contents["threat"]))
    metric = contents["utility"]["metric"]
    if not isinstance(metric, str) or metric not in METRICS:
        raise ValueError(f"there is no metric {shown(metric)}")


def _maybe(read: Callable[[Json], Any], entry: Json | None) -> Any:
    return None if entry is None else read(entry)


def _leak(stored: StoredAudit, attack: str) -> AttackResult:
    """Return what the scores say, if audit.json says the same."""
    said = stored.leak(attack)
    found = evaluate_scores(
        said["attack"], said["settings"], said["threshold"], stored.clients(attack)
    )
    there = Estimate.from_dict(said["auroc"])
    for name in ("value", "low", "high"):
        pair = getattr(there, name), getattr(found.auroc, name)
        if not math.isclose(*pair, abs_tol=_CLOSE) and not all(map(math.isnan, pair)):
            raise ValueError(
                f"{attack} has the AUROC {there}, and its scores give {found.auroc}"
            )
    return found


def _scenario(stored: StoredAudit, results: Mapping[str, AttackResult]) -> Scenario:
    """Return the scenario as it was played; one that is no more has no attacks."""
    told = " ".join(leak.settings for leak in results.values())
    shadows = re.findall(r"\bshadows=(\d+)", told)
    try:
        plan = find_scenario(stored.scenario, int(shadows[0]) if shadows else 0)
    except UnknownNameError:
        plan = Scenario(stored.scenario, "", "", {})
    known = {name: a for name, a in plan.attacks.items() if name in results}
    question, threat = stored.contents["question"], stored.contents["threat"]
    if threat == "server-aggregate":
        plan = plan.where_masked()  # if that is not what the scenario asks for anyhow
    return replace(plan, question=question, threat=threat, attacks=known)


def _estimates(entries: Json, *names: str) -> dict[str, Estimate]:
    return {name: Estimate.from_dict(entries[name]) for name in names}


def _utility(said: Json) -> Utility:
    some = ("neighbour", "server", "everywhere")
    captions = {
        who: _estimates(metrics, *metrics) for who, metrics in said["captions"].items()
    }
    return Utility(
        gain=Estimate.from_dict(said["gain_over_zero_shot"]),
        metric=said["metric"],
        captions=captions,
        macro_f1=_maybe(Estimate.from_dict, said.get("macro_f1")),
        **_estimates(said, "local", "zero_shot", "mix"),
        **{name: _maybe(Estimate.from_dict, said[name]) for name in some},
    )


def _closeness(said: Json) -> Closeness:
    return Closeness(**_estimates(said, *(field.name for field in fields(Closeness))))


def _comparison(said: Json) -> Comparison:
    return Comparison(Estimate.from_dict(said["estimate"]), float(said["p_value"]))


def _linking(said: Json) -> Linking:
    return Linking(
        attack=said["attack"],
        alone=Estimate.from_dict(said["auroc_without"]),
        more={n: _comparison(one) for n, one in said["auroc_difference"].items()},
        right=Estimate.from_dict(said["linked_right"]),
        chance=float(said["linked_right_by_chance"]),
        suspects=int(said["suspects"]),
    )


def _rounds(said: Json) -> RoundLeak:
    found = {int(r): Estimate.from_dict(e) for r, e in said["by_round"].items()}
    return RoundLeak(said["attack"], said["meaning"], found)


def _source(said: Json) -> SourceInference:
    told = _estimates(said, "members", "others", "beyond")
    return SourceInference(**told, chance=float(said["chance"]))


def _one_run(said: Json) -> OneRunAudit:
    verdict = said["verdict"]
    return OneRunAudit(
        said["canaries"],
        said["scored_by"],
        EpsilonBound.from_dict(said["bound"]),
        tuple(EpsilonBound.from_dict(other) for other in said["others"]),
        ClaimVerdict(verdict["kind"], verdict["sentence"], verdict["alarm"]),
    )
