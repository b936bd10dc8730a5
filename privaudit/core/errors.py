"""Errors that privaudit raises on purpose.

PrivauditError
├── ConfigError                a value that no run could use
│   ├── UnknownNameError
│   ├── LimitError             a file that would take too much memory
│   ├── DatasetError           files or records of a data set that cannot be used
│   ├── TooFewRecordsError     fewer records, or canaries, than a number needs
│   ├── IncompatibleRunsError  runs, or a run and a baseline, that cannot be compared
│   ├── RunInUseError          a run that another process trains or writes in
│   └── AttackError            an attack that these models or records do not allow
├── MissingFileError           something that must be there first: a checkpoint, a run
├── TranscriptError            a record that was cut, altered or written by another version
├── TrustError                 a record signed by a key that nobody here trusts
├── PluginError                code of another package that cannot be used
├── TrainingError              a run that had to stop: a loss that is not finite
├── StorageError               a folder that cannot be written
├── LostWorkerError            a process or a node that was killed while it worked
└── ViewError                  an attack asks for more than its threat model shows
"""

import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from typing import Any


def shown(value: object) -> str:
    """Return a value as errors show it: what is very long is cut.

    Example:
        >>> shown("ab" * 400)[:7], len(shown("ab" * 400)) < 150
        ("'ababab", True)
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"{type(value).__name__} of too many digits to be shown"
    return text if len(text) <= 120 else f"{text[:90]}… ({len(text):,} characters)"


def one_line(text: str) -> str:
    r"""Return a text as one line of a terminal, which nothing in it steers.

    Names and values of other people's may hold line ends, control characters or
    thousands of letters.

    Example:
        >>> one_line("a" + chr(10) + chr(27) + "[31mb")
        'a \\x1b[31mb'
    """
    line = " ".join(part.strip() for part in text.splitlines())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= 1200 else f"{line[:800]} … {line[-300:]}"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a question after the name that was meant, perhaps; empty if none is near.

    Example:
        >>> nearest("promtfl", ["promptfl", "dp-fpl"])
        " Did you mean 'promptfl'?"
    """
    close = get_close_matches(str(name)[:200], list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


class PrivauditWarning(UserWarning):
    """What goes on, and somebody should know of; the command line prints it as a line."""


class PrivauditError(Exception):
    """Base of every error that privaudit raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process raise it here, whatever its class is made of."""
        return _made_again, (type(self), str(self))


def _made_again(kind: type[PrivauditError], text: str) -> PrivauditError:
    error = kind.__new__(kind)
    error.args = (text,)
    return error


class ConfigError(PrivauditError, ValueError):
    """A value that no run could use."""


class UnknownNameError(ConfigError):
    """No trainer, attack, scenario, data set or model has that name.

    The ``known`` names are shown; ``nearby`` are others that may have been meant,
    ``renamed`` is what it is called now, and ``folder`` the one of the repository
    whose package has it, "labs" or "tools".
    """

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        nearby: Iterable[str] = (),
        renamed: str = "",
        folder: str = "",
    ) -> None:
        names = sorted(known)
        meant = nearest(name, [*names, *nearby])
        if renamed:
            meant = f" It is called {renamed!r} now."
        said = f"No {kind} is called {shown(name)}.{meant} Known: {', '.join(names)}."
        if folder:
            said = not_installed(f"The {kind} {shown(name)} stands in", folder)
        super().__init__(said)


def not_installed(subject: str, folder: str) -> str:
    """Return what to install for a thing of a package of the repository.

    Args:
        subject: What stands there, up to the package's name.
        folder: Of the package, "labs" or "tools".
    """
    return (
        f"{subject} privaudit-{folder}, which is not installed. Install it from a clone "
        f"of the repository: pip install ./{folder}."
    )


class LimitError(ConfigError):
    """A file that would take too much memory; see :mod:`privaudit.core.limits`."""


class DatasetError(ConfigError):
    """Files or records of a data set that cannot be used as they are."""


class TooFewRecordsError(ConfigError):
    """Fewer records, or canaries, than a number needs."""


class IncompatibleRunsError(ConfigError):
    """Runs, or a run and a baseline, that cannot be compared."""


class RunInUseError(ConfigError):
    """A run that another process trains or writes in; later it is free."""


class AttackError(ConfigError):
    """An attack that these models or records do not allow, or that gave no scores."""


class MissingFileError(PrivauditError):
    """Something that must be there first is not: a checkpoint, a run."""


class TranscriptError(PrivauditError):
    """A record that was cut, altered or written by another version."""


class TrustError(PrivauditError):
    """A record signed by a key that nobody here trusts."""


class PluginError(PrivauditError):
    """Code of another package that cannot be used."""


class TrainingError(PrivauditError):
    """A run that had to stop; what it had is kept."""


class StorageError(PrivauditError):
    """A folder that cannot be written, or a full disk."""


class LostWorkerError(PrivauditError):
    """A process, or a node, that was killed while it worked; finished rounds are kept."""


class ViewError(PrivauditError):
    """An attack asks for more than its threat model shows."""


@contextmanager
def without_exits() -> Iterator[None]:
    """Make a PluginError of ``sys.exit`` in others' code; also decorates a function.

    An owner's script without a main guard, a plugin or a model's own code would end
    the process with exit code 0, which a gate takes for a pass. A reader of the output
    that went away (``| head``) ends it, too: rich does so, with exit code 1.
    """
    try:
        yield
    except SystemExit as ending:
        if ending.code and isinstance(ending.__context__, BrokenPipeError):
            raise
        raise PluginError(_ended_by(ending)) from None


def _ended_by(ending: BaseException) -> str:
    """Return who ended the process: the last line that is not installed, or not ours."""
    lines = [(frame.f_code, line) for frame, line in walk_tb(ending.__traceback__)]
    ours = "<frozen", str(Path(__file__).parents[1])
    theirs = [one for one in lines if not one[0].co_filename.startswith(ours)] or lines
    installed = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")
    own = [one for one in theirs if not one[0].co_filename.startswith(installed)]
    code, line = (own or theirs)[-1]
    imported = any(one.co_name == "<module>" for one, _ in theirs)
    return (
        f"{Path(code.co_filename).name} ended the process (sys.exit) in line {line}, "
        f"while it was {'imported' if imported else 'called'}. Put what a script does "
        "under `if __name__ == '__main__':`, and raise an error in place of sys.exit."
    )
