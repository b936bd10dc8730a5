"""Signals of shadow models are found again only where they would come out the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from privaudit import load_run
from privaudit.auditing.audit_part import PARTS, AuditPart
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.played_scenario import store_beside
from privaudit.core.errors import PluginError


@pytest.mark.parametrize(
    "other",
    [{"bits": "portable", "builds": {}}, {"bits": "native", "builds": {"a": "1"}}],
)
def test_signals_of_other_bits_or_builds_are_not_taken(
    whole: Path, other: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit would say that it was computed in bits that its numbers do not have."""

    def named() -> object:
        store = store_beside(load_run(whole), ("server",), 0)
        assert store is not None
        return store.context

    here = "privaudit.auditing.played_scenario.computed_with"
    monkeypatch.setattr(here, lambda: {"bits": "native", "builds": {}})
    before = named()
    assert named() == before
    monkeypatch.setattr(here, lambda: other)
    assert named() != before


def test_a_part_of_another_package_replaces_nothing_of_an_audit(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = Auditor(load_run(whole)).attack("black-box", shadows=0)
    assert PARTS.usable()
    monkeypatch.setattr(PARTS, "_entries", dict(PARTS._entries))
    AuditPart("mine", int, lambda _: True, lambda _: 1, 0, "Mine", key="privacy")
    with pytest.raises(PluginError, match="writes 'privacy'"):
        replace(audit, parts={**audit.parts, "mine": 1}).to_dict()
