"""The gate's and the linter's findings as SARIF 2.1.0.

A finding points at the line that sets what governs it, where one is known. What passed
is left out: readers that know no ``kind`` would show it as a finding. What is not
decided is of kind "open", the standard's word for too little evidence.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", 2020,
sections 3.13 (log), 3.14 (run), 3.27 (result), 3.28 to 3.33 (locations), 3.49 (rules).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from privaudit.checks.gate.settings import TABLE, SettingLine
from privaudit.core.storage import read_bytes
from privaudit.report.gate_codes import coded

if TYPE_CHECKING:
    from privaudit.checks.gate.checks import AnyCheck
    from privaudit.checks.gate.gate import GateResult
    from privaudit.checks.lint import Finding
    from privaudit.federated.runs.runs import Run

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
Json = dict[str, Any]

_GATE_RULES: Mapping[str, str] = {
    "leak-change": "Does the run leak more than its baseline, beyond the margin?",
    "use-change": "Is the run's utility below its baseline's, beyond the margin?",
    "leak-limit": "Is an attack's AUROC above the limit?",
    "use-limit": "Is the utility below the limit?",
    "guarantee": "Is a claimed or certified epsilon weaker than the baseline's?",
    "strength": "Was less checked, or asked, than there was to be?",
}


def gate_sarif(result: "GateResult") -> Json:
    """Return a gate's regressions, and what it could not decide, in codes."""
    not_passed = [check for check in result.checks if check.outcome != "pass"]
    rules = [_rule(name, question) for name, question in _GATE_RULES.items()]
    order = list(_GATE_RULES)
    results = [
        _of_check(check, result, order.index(check.rule)) for check in not_passed
    ]
    return _log(rules, results)


def _of_check(check: "AnyCheck", result: "GateResult", index: int) -> Json:
    decided = check.outcome == "regression"
    setting = check.setting
    place = result.places.get(setting) or result.places.get("")
    mark = (check.rule, result.settings.scenario, check.name)
    return {
        "ruleId": check.rule,
        "ruleIndex": index,
        "kind": "fail" if decided else "open",
        "level": "error" if decided else "none",
        "message": {"text": coded(check)},
        "locations": [_location(f"{TABLE}.{setting}", setting, place)],
        "partialFingerprints": {"privauditCheck/v1": _fingerprint(mark)},
    }


def lint_sarif(findings: "Mapping[Run, Sequence[Finding]]") -> Json:
    """Return the linter's findings about runs; notes too.

    They point at run.json, at the line of the first setting that causes them.
    """
    from privaudit.checks.lint import RULES

    rules = [_rule(rule.name, rule.question) for rule in RULES]
    order = [rule.name for rule in RULES]
    results = []
    for run, run_findings in findings.items():
        for finding in run_findings:
            if finding.rule not in order:  # of the linter as a whole
                order.append(finding.rule)
                rules.append(_rule(finding.rule, finding.rule))
            results.append(_of_finding(finding, run, order.index(finding.rule)))
    return _log(rules, results)


def _of_finding(finding: "Finding", run: "Run", index: int) -> Json:
    setting = finding.settings[0].partition("=")[0] if finding.settings else ""
    name = f"{run.name}.{setting}" if setting else run.name
    mark = (finding.rule, run.name, *finding.settings)
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "kind": "fail",
        "level": finding.severity,
        "message": {"text": str(finding.sentence)},
        "locations": [_location(name, setting or run.name, _in_run(run, setting))],
        "partialFingerprints": {"privauditFinding/v1": _fingerprint(mark)},
    }


def _in_run(run: "Run", setting: str) -> SettingLine:
    """Return the line of run.json that holds a setting, or its first."""
    lines = read_bytes(run.path / "run.json").decode().splitlines()
    line_numbers = [n for n, line in enumerate(lines, 1) if f'"{setting}":' in line]
    path, here = (run.path / "run.json").resolve(), Path.cwd()
    file = path.relative_to(here) if path.is_relative_to(here) else path
    return SettingLine(file.as_posix(), line_numbers[0] if line_numbers else 1)


def _rule(name: str, question: str) -> Json:
    return {"id": name, "shortDescription": {"text": question}}


def _log(rules: Sequence[Json], results: Iterable[Json]) -> Json:
    driver = {
        "name": "privaudit",
        "version": version("privaudit"),
        "rules": list(rules),
    }
    run = {"tool": {"driver": driver}, "results": list(results)}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _location(full_name: str, name: str, place: SettingLine | None) -> Json:
    location: Json = {
        "logicalLocations": [
            {"name": name, "fullyQualifiedName": full_name, "kind": "property"}
        ]
    }
    if place is not None:
        file = Path(place.file)
        uri = file.as_uri() if file.is_absolute() else quote(place.file)
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri},
            "region": {"startLine": place.line},
        }
    return location


def _fingerprint(mark: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(mark).encode()).hexdigest()
