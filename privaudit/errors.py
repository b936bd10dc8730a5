"""What privaudit raises on purpose.

PrivauditError
├── ConfigError          a value that no run could use
│   └── UnknownNameError
├── MissingFileError     something that must be there first: a checkpoint, a run
├── TranscriptError      a record that was cut, altered or written by another version
├── TrustError           a record signed by a key that nobody here trusts
├── TrainingError        a run that had to stop: a loss that is not finite
├── StorageError         a folder that cannot be written
└── ViewError            an attack asks for more than its threat model shows
"""

from collections.abc import Iterable
from difflib import get_close_matches


class PrivauditError(Exception):
    """Base of every error that privaudit raises on purpose."""


class ConfigError(PrivauditError, ValueError):
    """A value that no run could use."""


class UnknownNameError(ConfigError):
    """No trainer, attack, scenario, data set or model has that name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        super().__init__(
            f"No {kind} is called {name!r}.{hint} Known: {', '.join(names)}."
        )


class MissingFileError(PrivauditError):
    """Something that must be there first is not: a checkpoint, a run."""


class TranscriptError(PrivauditError):
    """A record that was cut, altered or written by another version."""


class TrustError(PrivauditError):
    """A record signed by a key that nobody here trusts."""


class TrainingError(PrivauditError):
    """A run that had to stop; what it had is kept."""


class StorageError(PrivauditError):
    """A folder that cannot be written, or a full disk."""


class ViewError(PrivauditError):
    """An attack asks for more than its threat model shows."""
