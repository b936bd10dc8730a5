"""Events as short texts, in plain lines for logs and pipes or as a picture in a terminal."""

from collections.abc import Iterable, Iterator, Mapping
from time import monotonic

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from privaudit.cli.progress.view import Display
from privaudit.core.formatting import epsilon as bound_of
from privaudit.core.formatting import small
from privaudit.privacy.certificate import REPEATABLE
from privaudit.report.tables.attack_tables import size
from privaudit.report.wording import interval, point
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.progress import CellDone, Event, Phase, RoundDone


def line_of(event: Event) -> str:
    """Return an event as one line."""
    if isinstance(event, RoundDone):
        numbers = ", ".join(f"{head} {text}" for head, text in numbers_of(event))
        return f"{event.run}: round {event.done}/{event.total}, {numbers}"
    if isinstance(event, CellDone):
        numbers = f"{event.metric} {number(event.utility)}, AUROC {number(event.auroc)}"
        left = f", about {duration(event.seconds_left)} left"
        after = left if event.done < event.total else ""
        return f"{event.done}/{event.total} {event.name}: {numbers}{after}"
    return f"{event.run}: {phase_of(event)}"


def phase_of(event: Phase) -> str:
    """Say what begins, and how far it is."""
    which = f"{event.done + 1}/{event.total}"
    parts = {
        "encode": f"{event.done}/{event.total} pictures encoded",
        "wait": f"{event.done}/{event.total} s without a sign of {event.what}",
        "reconstruct": f"reconstruct {event.what}",
        "shadows": f"shadow models {event.done}/{event.total} of {event.what}",
        "attack": f"attack {which}, {event.what}",
        "cell": f"train and attack {which}, {event.what}",
        "claim": f"{event.done}/{event.total} runs with and without a canary",
        "check": f"check {which}, {event.what}",
    }
    return parts[event.phase] + (f", {event.detail}" if event.detail else "")


def numbers_of(event: RoundDone) -> list[tuple[str, str]]:
    """Return the numbers that matter while a run is trained, with their names."""
    return [
        ("loss", f"{event.loss:.3f}"),
        ("utility", _utility(event)),
        ("sent", f"{size(event.bytes_up)} up, {size(event.bytes_down)} down"),
        ("epsilon", spent(event)),
    ]


def _utility(event: RoundDone) -> str:
    if event.utility is None:
        return "not measured yet"
    late = event.utility_round != event.done
    return number(event.utility) + (f" (round {event.utility_round})" * late)


def spent(event: RoundDone) -> str:
    """Say what is certified so far, against whom."""
    if all(epsilon is None for epsilon in event.epsilon.values()):
        return "none"
    proved = any(event.epsilon.values())
    late = event.epsilon_round != event.done
    after = f" (round {event.epsilon_round})" * late
    by_bound: dict[str, list[str]] = {}
    for view, bound in event.epsilon.items():
        by_bound.setdefault(bound_of(bound), []).append(view)
    bounds = "; ".join(f"{text} for {', '.join(v)}" for text, v in by_bound.items())
    mark = f" ({REPEATABLE})" if event.randomness == "seed" and proved else ""
    return f"{bounds}{after}, delta {small(event.delta)}{mark}"


def number(estimate: Estimate) -> str:
    """Return a number with its interval."""
    return f"{point(estimate)} {interval(estimate)}"


def duration(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> duration(3725.0), duration(42.0)
        ('1 h 2 min', '42 s')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


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


PER_SECOND = 2  # pictures: each takes milliseconds, which training would like to have

_UNITS: Mapping[str, str] = {
    "encode": "pictures encoded",
    "wait": "s of waiting",
    "reconstruct": "reconstructed",
    "shadows": "shadow models",
    "attack": "attacks",
    "cell": "runs",
    "claim": "runs",
    "check": "checks",
}
_NOW: Mapping[str, str] = {
    "wait": "for a sign of",
    "reconstruct": "reconstructed",
    "shadows": "of",
    "attack": "attack",
    "claim": "claim",
    "check": "check",
}


class RichView(Display):
    """A picture on the error stream that is gone when the work is done.

    Args:
        console: Of a terminal; by default the error stream.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.live: Live | None = None
        self._begin()

    def _begin(self) -> None:
        self.bars = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.tasks: dict[str, TaskID] = {}
        self.cell: Phase | None = None
        self.inner: RoundDone | Phase | None = None
        self.cells: list[CellDone] = []

    def __enter__(self) -> "RichView":
        self._begin()
        self.live = Live(
            get_renderable=self.picture,
            console=self.console,
            refresh_per_second=PER_SECOND,
            transient=True,
        )
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, event: Event, /) -> None:
        """Take an event into the next picture."""
        if isinstance(event, CellDone):
            self.cells.append(event)
            self._move("outer", event, _UNITS["cell"])
        elif isinstance(event, Phase) and event.phase == "cell":
            self.cell = event
            self._move("outer", event, _UNITS["cell"])
        else:
            self.inner = event
            unit = _UNITS[event.phase] if isinstance(event, Phase) else "rounds"
            self._move("inner", event, unit)

    def picture(self) -> RenderableType:
        """Return what is to be seen now."""
        rows = [*self._of_sweep(), *self._of_run()]
        parts: list[RenderableType] = [self.bars.get_renderable(), _grid(rows)]
        if self.cells:
            parts.append(_best(self.cells))
        return Group(*parts)

    def _of_sweep(self) -> Iterator[tuple[str, str]]:
        if self.cell is not None:
            yield "cell", self.cell.what
        if self.cells:
            yield "left", f"about {duration(self.cells[-1].seconds_left)}"

    def _of_run(self) -> Iterator[tuple[str, str]]:
        if self.inner is None:
            return
        yield "run", self.inner.run
        if isinstance(self.inner, RoundDone):
            yield from numbers_of(self.inner)
        elif self.inner.what:
            yield _NOW[self.inner.phase], self.inner.what
        if isinstance(self.inner, Phase) and self.inner.detail:
            yield "at", self.inner.detail

    def _move(self, bar: str, event: Event, unit: str) -> None:
        """Show how far a bar has come; one that counts anew starts its clock again."""
        if bar not in self.tasks:
            self.tasks[bar] = self.bars.add_task("", total=event.total, unit=unit)
        task = self.tasks[bar]
        before = self.bars.tasks[task]
        if before.fields["unit"] != unit or event.done < before.completed:
            self.bars.reset(task)
        self.bars.update(task, completed=event.done, total=event.total, unit=unit)


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Return lines of a name and what it is."""
    table = Table.grid(padding=(0, 2))
    for head, text in rows:
        table.add_row(Text(f"  {head}", style="dim"), Text(text))
    return table


def _best(cells: list[CellDone]) -> Table:
    """Return the runs of a sweep that stand out so far."""
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
    table.title = Text(
        f"  So far, single runs picked from {len(cells)}: no result yet", style="dim"
    )
    metric = cells[-1].metric
    for head in ("  ", "Run", metric, "AUROC"):
        table.add_column(Text(head), overflow="fold")
    for why, cell in (
        ("most useful", max(cells, key=lambda cell: cell.utility.value)),
        ("leaks least", min(cells, key=lambda cell: cell.auroc.value)),
        ("latest", cells[-1]),
    ):
        row = (f"  {why}", cell.name, number(cell.utility), number(cell.auroc))
        table.add_row(*map(Text, row))
    return table
