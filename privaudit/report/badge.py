"""The gate as a badge: JSON that shields.io draws from a URL.

Source: https://shields.io/badges/endpoint-badge, schema version 1.
"""

from typing import Any

from privaudit.checks.gate.gate import GateResult

_COLOURS = {"regression": "red", "underpowered": "yellow"}
_OF_A_PASS = {"proved": "brightgreen", "unproved": "lightgrey", "refuted": "orange"}


def gate_badge(result: GateResult) -> dict[str, Any]:
    """Return a gate's outcome without a name or a number: it may be public.

    A pass is green only where a guarantee is proved; elsewhere it says what is missing.
    """
    message, assurance = str(result.outcome), result.assurance
    colour = _COLOURS.get(message, _OF_A_PASS[assurance.kind])
    if message == "pass" and assurance.short:
        message = f"{message}, {assurance.short}"
    return {
        "schemaVersion": 1,
        "label": "privacy gate",
        "message": message,
        "color": colour,
    }
