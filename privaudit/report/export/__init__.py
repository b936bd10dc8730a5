"""What may leave the machine: a card fit for others to see, and its check."""

from privaudit.report.export.alone import CardCheck, Mismatch, check_card
from privaudit.report.export.export import Export, export_public
from privaudit.report.export.opening import (
    require_session,
    verify_as_auditor,
    write_opening,
)
from privaudit.report.export.recompute import Recomputed, recompute_run
from privaudit.report.export.verify import Verification, verify_card

__all__ = [
    "CardCheck",
    "Export",
    "Mismatch",
    "Recomputed",
    "Verification",
    "check_card",
    "export_public",
    "recompute_run",
    "require_session",
    "verify_as_auditor",
    "verify_card",
    "write_opening",
]
