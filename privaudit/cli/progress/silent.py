"""Nothing but results: what ``--quiet`` shows."""

from collections.abc import Callable, Sequence

import typer

from privaudit.statistics.progress import Event, Result


class Silent:
    """Shows no event, and of results the essentials."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, event: Event, /) -> None:
        """Show nothing."""

    def present(self, results: Sequence[Result], in_full: Callable[[], None]) -> None:
        """Print the essentials."""
        for result in results:
            typer.echo(result.essential)
