"""What may leave the machine: a card fit for others to see, and its check."""

from privaudit.report.export.export import Export, export_public
from privaudit.report.export.verify import Mismatch, Verification, verify_card

__all__ = ["Export", "Mismatch", "Verification", "export_public", "verify_card"]
