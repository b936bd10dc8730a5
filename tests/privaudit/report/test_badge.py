"""The gate's badge says no more than the outcome, and is green where it is proved."""

import json
from dataclasses import replace

import pytest

from privaudit.auditing.assurance import Assurance
from privaudit.checks.gate.gate import GateResult
from privaudit.report.badge import gate_badge
from tests.privaudit.report.gate_results import NASTY, made

PROVED = Assurance("proved")
MISSING = Assurance("unproved", "nothing proved", "Nothing is proved.")
REFUTED = Assurance("refuted", "claim refuted", "Canaries show more.")


def passed() -> GateResult:
    result = made(NASTY, None, same=0.0)
    return replace(result, checks=result.checks[:1])


@pytest.mark.parametrize(
    ("result", "message", "colour"),
    [
        (made(NASTY), "regression", "red"),
        (replace(made(), checks=made().checks[2:3]), "underpowered", "yellow"),
        (replace(passed(), assurance=PROVED), "pass", "brightgreen"),
        (replace(passed(), assurance=MISSING), "pass, nothing proved", "lightgrey"),
        (replace(passed(), assurance=REFUTED), "pass, claim refuted", "orange"),
    ],
)
def test_a_badge(result: GateResult, message: str, colour: str) -> None:
    assert gate_badge(result) == {
        "schemaVersion": 1,
        "label": "privacy gate",
        "message": message,
        "color": colour,
    }


def test_a_badge_is_json_without_names() -> None:
    assert NASTY not in json.dumps(gate_badge(made(NASTY)), ensure_ascii=False)
