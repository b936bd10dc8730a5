"""What may leave the machine: exports fit for others to see, and their check."""

from privaudit.public.export import Export, export_public
from privaudit.public.verify import Mismatch, Verification, verify_card

__all__ = ["Export", "Mismatch", "Verification", "export_public", "verify_card"]
