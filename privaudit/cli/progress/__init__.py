"""Progress of a command that works, shown to whoever watches.

Training, attacks and sweeps tell *events*; a *watcher* is any function that takes one.
Nothing that is computed depends on it. The command line has four watchers: a picture in
the terminal, plain lines, JSON lines, and silence.
"""

from privaudit.cli.progress.view import Display, choose_view
from privaudit.statistics.progress import (
    CellDone,
    Event,
    Phase,
    Result,
    RoundDone,
    Watcher,
)

__all__ = [
    "CellDone",
    "Display",
    "Event",
    "Phase",
    "Result",
    "RoundDone",
    "Watcher",
    "choose_view",
]
