"""Views of events: none, JSON lines, and the choice of one that fits the terminal."""

import json
import sys
from collections.abc import Callable, Sequence

import typer

from privaudit.cli.printing import as_json
from privaudit.core.errors import ConfigError
from privaudit.statistics.progress import Event, Result


class Display:
    """A watcher that is opened and closed, and then presents what came of it.

    This one shows no event, and prints all of a result.
    """

    def __enter__(self) -> "Display":
        """Begin to show events."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was, whatever happened."""

    def __call__(self, event: Event, /) -> None:
        """Show an event."""

    def present(self, results: Sequence[Result], in_full: Callable[[], None]) -> None:
        """Print results to the output: in full, its essentials, or as JSON.

        Args:
            results: What came of it; of each run where several were asked.
            in_full: Prints all of it, for people to read.
        """
        in_full()


class Silent(Display):
    """Shows no event, and of results the essentials: ``--quiet``."""

    def present(self, results: Sequence[Result], in_full: Callable[[], None]) -> None:
        """Print the essentials."""
        for result in results:
            typer.echo(result.essential)


class JsonLines(Display):
    """Writes events and results as they come, one JSON object a line: ``--json``."""

    def __call__(self, event: Event | Result, /) -> None:
        """Write a line, which is complete when it is sent."""
        typer.echo(json.dumps(event.to_dict(), allow_nan=False))

    def present(self, results: Sequence[Result], in_full: Callable[[], None]) -> None:
        """Write a line for each result."""
        for result in results:
            self(result)


def choose_view(quiet: bool = False, in_json: bool | None = None) -> Display:
    """Return the view that fits the options and the terminal.

    Events go to the error stream, results to the output; as JSON both go to the output.
    By default that is so where the command was given ``--json``.

    Raises:
        ConfigError: Both options were given.
    """
    in_json = as_json.get() if in_json is None else in_json
    if quiet and in_json:
        raise ConfigError(
            "--quiet and --json were both given, and each says what the output holds. "
            "Give one of them."
        )
    if in_json:
        return JsonLines()
    if quiet:
        return Silent()
    from privaudit.cli.progress.live import PlainLines, RichView

    return RichView() if _has_terminal() else PlainLines()


def _has_terminal() -> bool:
    """Say whether pictures can be drawn; colours forced upon a file are no terminal."""
    from rich.console import Console

    return sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
