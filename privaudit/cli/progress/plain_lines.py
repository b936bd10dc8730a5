"""Plain lines on the error stream, for logs and pipes: no control characters."""

from time import monotonic

import typer

from privaudit.cli.progress.view import Display
from privaudit.cli.progress.words import duration, line_of
from privaudit.statistics.progress import CellDone, Event, Phase, RoundDone

LINES = 20  # for each thing that is counted, at most, and one for its beginning
SOON = 10.0  # seconds after which it is said how long the rest takes


class PlainLines(Display):
    """Writes about twenty lines for each run that is trained, attacked or swept.

    Inside a sweep its cells are counted, and not what goes on in them.
    """

    def __init__(self) -> None:
        self.steps: dict[tuple[str, ...], int] = {}
        self.begun: dict[tuple[str, ...], tuple[float, int]] = {}
        self.in_sweep = False

    def __call__(self, event: Event, /) -> None:
        """Write a line, if it is due."""
        if isinstance(event, Phase) and event.phase == "cell":
            self.in_sweep = True
        elif isinstance(event, CellDone) or not self.in_sweep:
            self._write_if_due(event)

    def _write_if_due(self, event: Event) -> None:
        key, step = _counted(event), LINES * event.done // max(event.total, 1)
        if self.steps.get(key) != step:
            self.steps[key] = step
            typer.echo(line_of(event) + self._left(key, event), err=True)

    def _left(self, key: tuple[str, ...], event: Event) -> str:
        """Say how long the rest takes if it goes on as so far; not of short work."""
        now = monotonic()
        begun, first = self.begun.setdefault(key, (now, event.done))
        done, left = event.done - first, event.total - event.done
        if isinstance(event, CellDone) or now - begun < SOON or min(done, left) <= 0:
            return ""  # a cell says it itself
        return f", about {duration((now - begun) * left / done)} left"


def _counted(event: Event) -> tuple[str, ...]:
    """Return what an event's counter is of."""
    if isinstance(event, RoundDone):
        return (event.event, event.run)
    if isinstance(event, CellDone):
        return (event.event,)
    shadows = (event.what,) if event.phase == "shadows" else ()
    return (event.event, event.run, event.phase, *shadows)
