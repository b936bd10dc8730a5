"""Zip files whose list of entries is bounded before it is read."""

import io
from typing import Any
from zipfile import ZipFile

from privaudit.core.limits import check_limit


class _BoundedReads:
    """A file of which zipfile reads the list of entries, in one piece, if it may.

    zipfile makes an object of each entry, which takes ten times as much.
    """

    def __init__(self, file: io.BufferedIOBase, what: str) -> None:
        self._file, self._what, self.is_open = file, what, False

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes."""
        if not self.is_open:
            check_limit("directory", size, f"The list of entries in {self._what}")
        return self._file.read(size)

    def __del__(self) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def open_zip(file: io.BufferedIOBase, what: str) -> ZipFile:
    """Open a zip, if its list of entries is within the bounds.

    Raises:
        LimitError: The list is larger.
        BadZipFile: It is no zip; also the other errors that zipfile has for damage.
    """
    bounded = _BoundedReads(file, what)
    archive = ZipFile(bounded)
    check_limit("entries", len(archive.infolist()), what)
    bounded.is_open = True
    return archive
