"""Folders and archives, as the wheel's data sets are brought."""

from tests.privaudit.datasets.conftest import bring

__all__ = ["bring"]
