"""Which classes of attacks a scenario tries, by attack_classes.toml.

Source: EDPB, Opinion 28/2024 on AI models, on testing and resistance to attacks.
"""

import tomllib
from collections.abc import Mapping
from typing import Any

from privaudit.auditing.scenario import SCENARIOS
from privaudit.report.page_template import asset

CLASSES: dict[str, Any] = tomllib.loads(asset("attack_classes.toml"))


def classes_tried(scenario: str) -> str:
    """Say which of EDPB's classes a scenario tries, and what the others take."""
    rows = CLASSES["edpb"]["rows"]
    tried = [r["item"] for r in rows if scenario in r.get("scenarios", ())]
    others = [f"{r['item']} ({lacking(r)})" for r in rows if r["item"] not in tried]
    return f"tried: {', '.join(tried) or 'none'}; not: {', '.join(others)}"


def lacking(row: Mapping[str, Any]) -> str:
    """Say why a class is not tried, or which scenarios would try it."""
    apart = SCENARIOS.in_labs()
    named = [
        f"{name} of privaudit-labs" if name in apart else name
        for name in row.get("scenarios", [])
    ]
    return row.get("why") or f"it takes {' or '.join(named)}"
