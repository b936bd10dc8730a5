"""The picture in a terminal: bars, and the numbers that matter below them."""

from collections.abc import Iterable, Iterator, Mapping

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
from privaudit.cli.progress.words import duration, number, numbers_of
from privaudit.statistics.progress import CellDone, Event, Phase, RoundDone

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
            self._move("inner", event, _unit(event))

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


def _unit(event: RoundDone | Phase) -> str:
    return "rounds" if isinstance(event, RoundDone) else _UNITS[event.phase]


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
    for why, cell in _standing_out(cells):
        row = (f"  {why}", cell.name, number(cell.utility), number(cell.auroc))
        table.add_row(*map(Text, row))
    return table


def _standing_out(cells: list[CellDone]) -> Iterator[tuple[str, CellDone]]:
    yield "most useful", max(cells, key=lambda cell: cell.utility.value)
    yield "leaks least", min(cells, key=lambda cell: cell.auroc.value)
    yield "latest", cells[-1]
