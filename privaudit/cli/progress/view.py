"""Which view of events a command line gets, and what every view can do."""

import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, runtime_checkable

from privaudit.core.errors import ConfigError
from privaudit.statistics.progress import Event, Result


@runtime_checkable
class Display(Protocol):
    """A watcher that is opened and closed, and then presents what came of it."""

    def __enter__(self) -> "Display":
        """Begin to show events."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was, whatever happened."""
        ...

    def __call__(self, event: Event, /) -> None:
        """Show an event."""
        ...

    def present(self, results: Sequence[Result], in_full: Callable[[], None]) -> None:
        """Print results to the output: in full, its essentials, or as JSON.

        Args:
            results: What came of it; of each run where several were asked.
            in_full: Prints all of it, for people to read.
        """
        ...


def choose_view(quiet: bool = False, as_json: bool = False) -> Display:
    """Return the view that fits the options and the terminal.

    Events go to the error stream, results to the output; with ``as_json`` both go to
    the output.

    Raises:
        ConfigError: Both options were given.
    """
    if quiet and as_json:
        raise ConfigError(
            "--quiet and --json were both given, and each says what the output holds. "
            "Give one of them."
        )
    if as_json:
        from privaudit.cli.progress.json_lines import JsonLines

        return JsonLines()
    if quiet:
        from privaudit.cli.progress.silent import Silent

        return Silent()
    if _has_terminal():
        from privaudit.cli.progress.rich_view import RichView

        return RichView()
    from privaudit.cli.progress.plain_lines import PlainLines

    return PlainLines()


def _has_terminal() -> bool:
    """Say whether pictures can be drawn; colours forced upon a file are no terminal."""
    from rich.console import Console

    return sys.stderr.isatty() and not Console(stderr=True).is_dumb_terminal
