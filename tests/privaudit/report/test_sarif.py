"""SARIF against the official schema, and against the standard's own rules.

The schema beside this file is OASIS' own, as json.schemastore.org serves it and the
package schemastore 0.2.3 ships it. It says less than the text of the standard, so what
that says about the objects that are written is written down here: which properties they
may have (it allows no others), which they must have, and of what type. Section numbers
are those of SARIF 2.1.0.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, ValidationError

from privaudit import train
from privaudit.checks.gate.settings import SettingLine
from privaudit.checks.lint import Finding
from privaudit.cli import main as cli
from privaudit.report.sarif import gate_sarif, lint_sarif
from tests.privaudit.report.gate_results import NASTY, made

Shape = Mapping[str, tuple[Any, bool]]  # property: type or shape or [shape], required

LOGICAL: Shape = {  # 3.33
    "name": (str, False),
    "fullyQualifiedName": (str, False),
    "kind": (str, False),
}
PHYSICAL: Shape = {  # 3.29: a location or an address; 3.30: lines from 1 on
    "artifactLocation": ({"uri": (str, False)}, True),
    "region": ({"startLine": (int, False)}, False),
}
LOCATION: Shape = {  # 3.28
    "logicalLocations": ([LOGICAL], False),
    "physicalLocation": (PHYSICAL, False),
}
RESULT: Shape = {  # 3.27
    "ruleId": (str, False),
    "ruleIndex": (int, False),
    "kind": (str, False),
    "level": (str, False),
    "message": ({"text": (str, True)}, True),  # 3.11
    "locations": ([LOCATION], False),
    "partialFingerprints": (dict, False),
}
RULE: Shape = {"id": (str, True), "shortDescription": ({"text": (str, True)}, False)}
DRIVER: Shape = {  # 3.19
    "name": (str, True),
    "version": (str, False),
    "rules": ([RULE], False),
}
RUN: Shape = {  # 3.14
    "tool": ({"driver": (DRIVER, True)}, True),
    "results": ([RESULT], False),
}
LOG: Shape = {  # 3.13
    "$schema": (str, False),
    "version": (str, True),
    "runs": ([RUN], True),
}
KINDS = ("pass", "open", "informational", "notApplicable", "review", "fail")
LEVELS = ("none", "note", "warning", "error")
# RFC 3986: what may stand in a URI reference without being escaped
URI = re.compile(r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*")


def check(value: Any, shape: Any, where: str = "log") -> None:
    """Raise AssertionError unless a value is as the standard has it."""
    if isinstance(shape, type):
        assert isinstance(value, shape), where
        assert not isinstance(value, bool), where
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for index, entry in enumerate(value):
            check(entry, shape[0], f"{where}[{index}]")
    else:
        assert set(value) <= set(shape), f"{where}: {set(value) - set(shape)}"
        for name, (inner, required) in shape.items():
            assert name in value or not required, f"{where} lacks {name}"
            if name in value:
                check(value[name], inner, f"{where}.{name}")


@cache
def official() -> Any:
    """Return the checker of SCHEMA, which the written files name."""
    schema = json.loads(Path(__file__).with_name("sarif-2.1.0.schema.json").read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema, format_checker=Draft7Validator.FORMAT_CHECKER)


def check_log(log: Any) -> None:
    log = json.loads(json.dumps(log, allow_nan=False))
    official().validate(log)
    check(log, LOG)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    ids = [rule["id"] for rule in rules]
    assert len(set(ids)) == len(ids)
    for result in run["results"]:
        assert result["kind"] in KINDS
        assert result["level"] in LEVELS
        if result["kind"] != "fail":  # 3.27.10
            assert result["level"] == "none"
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert all(isinstance(v, str) for v in result["partialFingerprints"].values())
        for location in result["locations"]:
            physical = location.get("physicalLocation")
            if physical:
                assert physical["region"]["startLine"] >= 1
                assert URI.fullmatch(physical["artifactLocation"]["uri"])


def results(log: Any) -> list[Any]:
    found: list[Any] = log["runs"][0]["results"]
    return found


def test_regressions_fail_and_what_is_not_decided_is_open() -> None:
    log = gate_sarif(made())
    check_log(log)
    kinds = [(one["kind"], one["level"]) for one in results(log)]
    assert kinds == [("fail", "error"), ("open", "none"), ("fail", "error")]
    said = [one["message"]["text"] for one in results(log)]
    assert said[0] == "Regression: found (worse: change, margin 0.05)."


def test_a_finding_points_at_the_line_that_sets_what_governs_it() -> None:
    places = {
        "": SettingLine("pyproject.toml", 3),
        "margin": SettingLine("pyproject.toml", 7),
    }
    log = gate_sarif(made(places=places))
    check_log(log)
    lines = {
        one["ruleId"]: one["locations"][0]["physicalLocation"]["region"]["startLine"]
        for one in results(log)
    }
    assert lines == {"leak-change": 7, "leak-limit": 3}


def test_without_a_file_the_setting_is_named() -> None:
    (location,) = results(gate_sarif(made()))[0]["locations"]
    assert "physicalLocation" not in location
    (logical,) = location["logicalLocations"]
    assert logical["fullyQualifiedName"] == "tool.privaudit.gate.margin"


def test_what_passes_is_no_result() -> None:
    log = gate_sarif(made(same=0.0))
    check_log(log)
    assert [one["ruleId"] for one in results(log)] == ["leak-limit"]


def test_a_fingerprint_stays_when_numbers_change() -> None:
    first, second = (results(gate_sarif(made(worse=v)))[0] for v in (0.3, 0.31))
    assert first["message"] == second["message"]
    assert first["partialFingerprints"] == second["partialFingerprints"]


def test_nasty_names_and_paths_are_valid() -> None:
    places = {"margin": SettingLine("a b/ä#?%.toml", 1)}
    log = gate_sarif(made(NASTY, places, **{NASTY: 0.3}))
    check_log(log)
    uri = results(log)[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "a%20b/%C3%A4%23%3F%25.toml"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log.update(extra=1),
        lambda log: log.pop("version"),
        lambda log: results(log)[0].pop("message"),
        lambda log: results(log)[0].update(level="fatal"),
        lambda log: results(log)[1].update(level="error"),
        lambda log: results(log)[0].update(ruleIndex=3),
    ],
)
def test_the_check_notices_what_the_standard_forbids(spoil: Any) -> None:
    log = gate_sarif(made())
    spoil(log)
    with pytest.raises((AssertionError, ValidationError)):
        check_log(log)


def test_the_official_schema_is_that_of_sarif_and_notices_what_it_forbids() -> None:
    assert "SARIF) Version 2.1.0" in official().schema["title"]
    spoils: list[Callable[[Any], Any]] = [
        lambda log: log.update(extra=1),
        lambda log: log.pop("version"),
        lambda log: results(log)[0].pop("message"),
        lambda log: results(log)[0].update(level="fatal"),
        lambda log: results(log)[0].update(ruleIndex=-2),
    ]
    for spoil in spoils:
        log = gate_sarif(made())
        spoil(log)
        with pytest.raises(ValidationError):
            official().validate(log)


def test_lint_findings_point_at_the_line_of_run_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = train("zero-shot", folder="runs", name="linted", rounds=1, clients=2, seed=0)
    findings = [
        Finding("stored-seeds", "warning", "All noise follows.", ("seed=0",)),
        Finding("not-a-rule", "note", "Nothing is claimed."),
    ]
    log = lint_sarif({run: findings})
    check_log(log)
    first, second = results(log)
    assert [one["level"] for one in (first, second)] == ["warning", "note"]
    physical = first["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "runs/linted/run.json"
    line = (tmp_path / "runs/linted/run.json").read_text().splitlines()
    assert '"seed":' in line[physical["region"]["startLine"] - 1]
    monkeypatch.setattr(
        sys, "argv", ["privaudit", "lint", "--runs", "runs", "linted", "--sarif", "l"]
    )
    with pytest.raises(SystemExit):
        cli.run()
    check_log(json.loads((tmp_path / "l").read_text()))
