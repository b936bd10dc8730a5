"""Whose record is it? Source inference in a sentence, with its numbers."""

from privaudit.audit import Audit
from privaudit.report.wording import interval, point, rate


def source_sentence(audit: Audit) -> str:
    """Say how often the right client is named; nothing where that was not asked."""
    found = audit.source
    if found is None:
        return ""
    return (
        f"The right client is named for {rate(found.members)} of {found.members.n[0]} "
        f"records trained on, and for {rate(found.others)} of {found.others.n[0]} "
        f"candidates that nobody trained on (by chance {100 * found.chance:.1f} %). "
        "What training adds is the difference, "
        f"{point(found.beyond, signed=True)} {interval(found.beyond)}: "
        f"{found.sentence}."
    )
