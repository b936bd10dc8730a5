"""One JSON object per line on the output, and nothing else there: ``--json``."""

import json
from collections.abc import Callable, Sequence

import typer

from privaudit.statistics.progress import Event, Result


class JsonLines:
    """Writes events and results as they come; each line is complete when it is sent."""

    def __enter__(self) -> "JsonLines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, event: Event | Result, /) -> None:
        """Write a line."""
        typer.echo(json.dumps(event.to_dict(), allow_nan=False))

    def present(self, results: Sequence[Result], in_full: Callable[[], None]) -> None:
        """Write a line for each result."""
        for result in results:
            self(result)
