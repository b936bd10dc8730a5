"""What a recorder leaves out, with a warning: it never raises into a federation."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from privaudit.core.errors import PrivauditError
from privaudit.recording.bundle import BUNDLE, INCOMPLETE

_log = logging.getLogger("privaudit.recording")


class Omissions:
    """What is not recorded of whom, said once for each client and reason.

    Args:
        folder: Of the run.

    Attributes:
        counts: How many messages of each client were left out.
        has_stopped: Whether nothing more is recorded: the recorder itself failed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counts = Counter[str]()
        self.has_stopped = False
        self._said = set[tuple[str, str]]()

    def leave_out(self, client: str, round: int, what: str, error: object) -> None:
        """Leave out what a client sent: ``what``, the same words each time, is wrong.

        ``error`` gives details, of the first time.
        """
        self.counts[client] += 1
        self.warn(
            client, what,
            "What %s sent in round %d is not recorded, and the federation goes on: %s "
            "(%s).",
            *(client[:80], round, what, " ".join(str(error).split())[:500]),
        )  # fmt: skip

    def warn(self, client: str, what: str, text: str, *arguments: object) -> None:
        """Log a warning, the first time that there is this to say of this client."""
        if (client, what) not in self._said:
            self._said.add((client, what))
            _log.warning(text, *arguments)

    @contextmanager
    def stop_on_failure(self) -> Iterator[None]:
        """Record nothing more where the disk is full, or the folder gone or closed.

        What was recorded is no whole federation: renaming takes no room on a disk.
        """
        try:
            yield
        except Exception as error:
            self.has_stopped = True
            with suppress(OSError):
                (self._folder / BUNDLE).replace(self._folder / INCOMPLETE)
            _log.error(
                "The recording of %s stops, and the federation goes on. What was "
                "recorded of it is not whole, and no run is made of it: %s",
                *(self._folder, error),
            )

    @contextmanager
    def only_said(self, kind: type[PrivauditError] = PrivauditError) -> Iterator[None]:
        """Say what keeps a recording from becoming a run, in place of raising it."""
        try:
            yield
        except kind as error:
            _log.error("%s is recorded, and no run yet: %s", self._folder, error)
