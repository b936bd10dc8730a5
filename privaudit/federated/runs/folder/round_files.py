"""The files that each round of a run adds lines to, open while the run is trained."""

from contextlib import ExitStack
from pathlib import Path
from typing import IO

from privaudit.core.storage import add_lines, storage_errors
from privaudit.federated.runs.folder.lease import Lease

METRICS, MANIFEST = "metrics.jsonl", "transcript/manifest.jsonl"


class RoundFiles(ExitStack):
    """Adds lines to files as they were when the run was taken up.

    Whoever takes the run over puts new files in their place, so that an owner that
    stood still, and wakes behind its last look at its lease, writes into no file of the
    run.
    """

    def __init__(self, path: Path, lease: Lease) -> None:
        super().__init__()
        self._path, self._lease = path, lease
        self._files: dict[str, IO[str]] = {}

    def open(self, *names: str) -> None:
        """Open files, which nobody else has replaced since the lease was taken.

        Raises:
            RunInUseError: Somebody may have.
            StorageError: They cannot be written.
        """
        for name in names:
            with storage_errors(self._path / name):
                file = (self._path / name).open("a", encoding="utf-8")
            self._files[name] = self.enter_context(file)
        self._lease.check()

    def add(self, name: str, lines: list[str]) -> None:
        """Append whole lines to an open file and wait until they are on the disk.

        Raises:
            RunInUseError: The run is another's by now.
            StorageError: They cannot be written.
        """
        self._lease.check()
        with storage_errors(self._path / name):
            add_lines(self._files[name], lines)
