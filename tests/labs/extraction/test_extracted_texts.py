"""Texts of a trained run that memorised them, from the audit to its page."""

import pytest

from privaudit import Auditor, Run
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.report.page import render_report
from privaudit_labs.extraction.extracted import EXTRACTION
from tests.test_writers_end_to_end import fewer_scenes, runs

__all__ = ["fewer_scenes", "runs"]  # fixtures
pytestmark = pytest.mark.slow


def test_texts_that_were_memorised_are_extracted(runs: dict[str, Run]) -> None:
    """And of a model that was not trained as many of members as of others."""
    audit = Auditor(runs["memorised"]).attack("text-extraction")
    found = audit.part(EXTRACTION)
    assert found is not None
    assert audit.auroc.value > 0.9
    assert found.shares["50 % shown, n = 100"].beyond.low > 0
    assert found.shares["50 % shown, n = 100"].members.value > 0.5
    assert all(one.members.value >= one.others.value for one in found.drawn.values())
    save_audit(audit)
    again = restore_audit(read_audit(audit.run, "text-extraction"))
    assert again.part(EXTRACTION) == found
    assert "50 % shown, greedy" in render_report([audit])
    assert "of what is behind 50 %" not in render_report([audit])
    assert "of what is behind 50 %" in render_report([audit], show_records=True)
    nothing = Auditor(runs["untrained"]).attack("text-extraction")
    assert nothing.auroc.low < 0.5 < nothing.auroc.high
    null = nothing.part(EXTRACTION)
    assert null is not None
    assert not null.shares["50 % shown, n = 100"].beyond.excludes(0)
