"""What CI reads of a gate and of the linter: badge, JUnit, Markdown and SARIF, in codes.

An exact number about members is an equation about them, and few are enough (see
docs/export.md). So no number that a membership enters is here, nor the run's name, which
may hold its seed: these texts may be public. Epsilons may follow from how many are
members, where whole clients are or where a run was recorded, so that none is here. The
terminal, ``--json`` and the report have the numbers, for the owner: :func:`gate_cells`.

Sources: https://shields.io/badges/endpoint-badge, schema version 1. JUnit has no standard:
elements and attributes are those that GitLab's and Jenkins' readers share (testsuites,
testsuite, testcase, failure, system-out). OASIS, "Static Analysis Results Interchange
Format (SARIF) Version 2.1.0", 2020, sections 3.13 (log), 3.14 (run), 3.27 (result), 3.28
to 3.33 (locations), 3.49 (rules). In SARIF a finding points at the line that sets what
governs it, where one is known; what passed is left out, as readers that know no ``kind``
would show it as a finding, and what is not decided is of kind "open", the standard's word
for too little evidence. In Markdown names may hold anything: what Markdown or HTML would
take for more than text is escaped.
"""

import hashlib
import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from privaudit.checks.gate.checks import AnyCheck, GateCheck
from privaudit.checks.gate.gate import GateResult
from privaudit.checks.gate.guarantees import GuaranteeCheck
from privaudit.checks.gate.settings import TABLE, SettingLine
from privaudit.core.formatting import outcome_in_words, xml_text
from privaudit.core.storage import append_lines, read_bytes
from privaudit.report.wording import interval, point
from privaudit.runs.own_files import check_file, write_output
from privaudit.statistics.verdict import UNKNOWN_SAMPLING

if TYPE_CHECKING:
    from privaudit.checks.lint import Finding
    from privaudit.runs.run import Run

_SAID = {
    "pass": "Pass: what it looks for is ruled out",
    "regression": "Regression: found",
    "rose, size open": "Rose, size open: worse, and whether beyond the line is open",
    "fell, size open": "Fell, size open: worse, and whether beyond the line is open",
    "underpowered": "Undecided",
}


def coded(check: AnyCheck) -> str:
    """Return a check's outcome in a sentence."""
    if isinstance(check, GateCheck):
        said = _SAID[check.outcome]
        if check.question.sampling == "unknown":
            said = (
                "No verdict on membership: no coin is declared that chose the members"
            )
        return f"{said} ({check.title}, {line_of(check)})."
    if isinstance(check, GuaranteeCheck):
        said = "is weaker" if check.outcome == "regression" else "is no weaker"
        return f"{check.outcome.capitalize()}: {check.name} {said} than before."
    outcome = outcome_in_words(check.outcome).capitalize()
    return f"{outcome}: {check.title} ({check.setting})."


def line_of(check: AnyCheck) -> str:
    """Return what a check is held to."""
    if isinstance(check, GateCheck):
        question = check.question
        return f"{question.setting.replace('_', ' ')} {question.limit:g}"
    return "no rise" if isinstance(check, GuaranteeCheck) else "no less"


def unproved(result: GateResult) -> str:
    """Return what is missing from a proof, without epsilons; nothing where one is."""
    short, sampling = result.assurance.short, result.assurance.sampling
    coins = UNKNOWN_SAMPLING if sampling == "unknown" else ""
    return f"{short.capitalize()}. {coins}".strip() if short else coins


def summary(result: GateResult) -> str:
    """Return what came of all checks in a sentence."""
    same = sum(check.outcome == result.outcome for check in result.checks)
    audits = result.tally.different
    among = f"; one of {audits} audits of the run" if audits > 1 else ""
    outcome = outcome_in_words(result.outcome).capitalize()
    said = f"{outcome}: {same} of {len(result.checks)} checks"
    beside = "against a baseline" if result.baseline else "against limits"
    among += f"; {result.untried}" if result.untried else ""
    return f"{said} ({beside}, {result.settings.scenario}{among})."


_COLOURS = {
    "regression": "red",
    "rose, size open": "orange",
    "fell, size open": "orange",
    "underpowered": "yellow",
}
_OF_A_PASS = {"proved": "brightgreen", "unproved": "lightgrey", "refuted": "orange"}


def gate_badge(result: GateResult) -> dict[str, Any]:
    """Return a gate's outcome without a name or a number: it may be public.

    A pass is green only where a guarantee is proved; elsewhere it says what is missing.
    """
    message, assurance = str(result.outcome), result.assurance
    colour = _COLOURS.get(message, _OF_A_PASS[assurance.kind])
    message = outcome_in_words(message)
    if message == "pass":
        message = ", ".join(filter(None, (message, result.untried, assurance.short)))
    return {
        "schemaVersion": 1,
        "label": "privacy gate",
        "message": message,
        "color": colour,
    }


def gate_junit(result: GateResult) -> str:
    """Return a gate's result: a test for each check, failed unless it passed.

    What is undecided is a failure too, of the type “underpowered”, as its exit code is
    not 0. It says codes and no numbers.
    """
    failed = [check for check in result.checks if check.outcome != "pass"]
    counts = {
        "tests": str(len(result.checks)),
        "failures": str(len(failed)),
        "errors": "0",
        "skipped": "0",
    }
    root = ET.Element("testsuites", {"name": "privaudit gate", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "privaudit gate", **counts})
    for check in result.checks:
        _add(suite, check, result.settings.scenario)
    ET.SubElement(suite, "system-out").text = xml_text(
        f"{summary(result)} {unproved(result)}".strip()
    )
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add(suite: ET.Element, check: AnyCheck, scenario: str) -> None:
    names = {
        "classname": xml_text(f"privaudit.gate.{scenario}"),
        "name": xml_text(check.title),
        "time": "0",
    }
    case = ET.SubElement(suite, "testcase", names)
    if check.outcome == "pass":
        ET.SubElement(case, "system-out").text = xml_text(coded(check))
        return
    kind = {"message": xml_text(coded(check)), "type": check.outcome}
    failure = ET.SubElement(case, "failure", kind)
    failure.text = xml_text(f"{coded(check)}\n{line_of(check)}")


_MARKS = {"pass": "✅ pass", "regression": "❌ regression", "unproved": "pass"}
_SIGNS = re.compile(
    r"""(?x)
    (?P<plain>                           # reads as it is, so that the text does too
      \[[+-]?\d[\d.]*,[ ][+-]?\d[\d.]*\](?![(\[:])   # an interval, and no link
      | (?<=[^\W_])[-_](?=[^\W_])        # within a word
      | (?<![-+])[-+](?=\d)              # a number's sign
      | (?<=\d[ ])[+](?=[ ]\d) | (?<=\w[ ])=(?=[ ]\w)
      | (?<=\d)\.(?=\d) | (?<=[^\W_]|[)\]])\.(?=\s|$) | (?<=\w):(?=\s|$)
    )
    | [\\`*_{}\[\]\#+\-.|~>$@:=^]
    """
)
_ITEM = re.compile(r"^(\d+)([.)])(?=\s|$)")  # what begins a numbered list
_SPACES = re.compile(r"[\s\x00-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
NUMBERS = "Codes only, as this may be public: the numbers are in the run's report."


def gate_markdown(result: GateResult) -> str:
    """Return a gate's result in codes: one line, a table, a sentence for each check.

    What did not pass comes first. Columns stand below each other, so that it reads as
    text, too.
    """
    heads = ("check", "line", "outcome")
    rows = [_row(check, result.assurance.kind) for check in result.checks]
    checks = sorted(result.checks, key=lambda check: check.outcome == "pass")
    lines = [
        f"### privaudit gate: {outcome_in_words(result.outcome)}",
        "",
        f"**{escape(summary(result))}**",
        "",
        *([escape(said), ""] if (said := unproved(result)) else []),
        *_table([heads, *rows]),
        "",
        *(f"- {escape(coded(check))}" for check in checks),
        "",
        NUMBERS,
        "",
    ]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of a table, the first row as its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    return [head, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *body]


def _row(check: AnyCheck, assurance: str) -> tuple[str, ...]:
    outcome = str(check.outcome)
    if outcome == "pass" and assurance != "proved":
        outcome = "unproved"  # no green where nothing is proved
    mark = _MARKS.get(outcome, f"⚠️ {outcome_in_words(outcome)}")
    return tuple(map(escape, (check.name, line_of(check), mark)))


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is, on one line.

    Example:
        >>> escape("a|b <script>")
        'a\\|b &lt;script&gt;'
    """
    plain = _SPACES.sub(" ", text).strip().replace("&", "&amp;").replace("<", "&lt;")
    escaped = _SIGNS.sub(lambda m: m[0] if m["plain"] else f"\\{m[0]}", plain)
    return _ITEM.sub(r"\1\\\2", escaped).replace(r"\>", "&gt;")


def write_summary(path: Path, text: str) -> None:
    """Write Markdown; GitHub's own summary of a step is added to, not replaced."""
    summary = os.environ.get(STEP_SUMMARY)
    if summary and Path(summary) == path:
        check_file(path)
        append_lines(path, [text])
    else:
        write_output(path, text.encode())


SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
Json = dict[str, Any]

_GATE_RULES: Mapping[str, str] = {
    "leak-change": "Does the run leak more than its baseline, beyond the margin?",
    "utility-change": "Is the run's utility below its baseline's, beyond the margin?",
    "leak-limit": "Is an attack's AUROC, or the share told at 1 % false alarms, above the limit?",
    "utility-limit": "Is the utility below the limit?",
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
    line = result.lines.get(setting) or result.lines.get("")
    mark = (check.rule, result.settings.scenario, check.name)
    return {
        "ruleId": check.rule,
        "ruleIndex": index,
        "kind": "fail" if decided else "open",
        "level": "error" if decided else "none",
        "message": {"text": coded(check)},
        "locations": [_location(f"{TABLE}.{setting}", setting, line)],
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


def _location(full_name: str, name: str, line: SettingLine | None) -> Json:
    location: Json = {
        "logicalLocations": [
            {"name": name, "fullyQualifiedName": full_name, "kind": "property"}
        ]
    }
    if line is not None:
        file = Path(line.file)
        uri = file.as_uri() if file.is_absolute() else quote(line.file)
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri},
            "region": {"startLine": line.line},
        }
    return location


def _fingerprint(mark: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(mark).encode()).hexdigest()


def gate_cells(check: AnyCheck) -> tuple[str, str, str, str]:
    """Return a check's name, its change or value, what it is held to, and its outcome."""
    outcome = outcome_in_words(check.outcome)
    if isinstance(check, GateCheck):
        question, estimate = check.question, check.estimate
        change = point(estimate, signed=question.before is not None)
        return question.name, f"{change} {interval(estimate)}", line_of(check), outcome
    if isinstance(check, GuaranteeCheck):
        change = f"{check.before.short} to {check.now.short}"
        return check.name, change, line_of(check), outcome
    return check.name, f"{check.before} to {check.now}", check.code, outcome
