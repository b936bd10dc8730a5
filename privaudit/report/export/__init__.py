"""What may leave the machine: a card fit for others to see, and its check."""

from privaudit.report.export.export import Export, export_public
from privaudit.report.export.recompute import Recomputed, recompute_run
from privaudit.report.export.verify import Mismatch, Verification, verify_card

__all__ = [
    "Export",
    "Mismatch",
    "Recomputed",
    "Verification",
    "export_public",
    "recompute_run",
    "verify_card",
]
