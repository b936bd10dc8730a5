"""The list of an audit's parts, and what of audit.json is none of theirs."""

from pathlib import Path

import pytest

from privaudit import Auditor, load_run
from privaudit.auditing.audit_part import OWN_KEYS, PARTS, AuditPart, stored_parts
from privaudit.core.errors import ConfigError


@pytest.mark.parametrize("key", ["privacy", "leaks"])
def test_a_part_that_would_replace_what_an_audit_says_is_refused(key: str) -> None:
    """As it is imported, before anything is computed."""
    with pytest.raises(ConfigError, match=f"writes '{key}'"):
        AuditPart("mine", int, lambda _: True, lambda _: 1, 0, "Mine", key=key)
    assert "mine" not in PARTS.names()


def test_what_an_audit_itself_writes_is_listed(whole: Path) -> None:
    audit = Auditor(load_run(whole)).attack("black-box", shadows=0)
    of_parts = {part.entry for part in stored_parts(audit.parts)}
    assert audit.to_dict().keys() - of_parts == OWN_KEYS - {"budget"}
