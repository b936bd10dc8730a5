"""MaxRényi's grid on the server's model and on the clients': FedRand's table 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.default_attacks import ALPHAS, SHARES, SLICES, GridCell, places
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.report.decision.badges import Findings
from privaudit.report.report_data import ReportData
from privaudit.report.wording import TableCell, TableRows

FIRST = 2.0  # the order that is shown open
GRID = {place.attack: place for place in places()}


@dataclass(frozen=True)
class GridRow:
    """One model's row: the server's own, or the clients', averaged."""

    run: str
    who: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class GridTable:
    """The grid for one order of the entropy.

    Attributes:
        order: As it is written.
        rows: Two for each run whose server's model was attacked too, else one.
        named: Number of the column that is the headline attack; None if it is of
            another order, or not of the grid.
    """

    order: str
    rows: tuple[GridRow, ...]
    named: int | None


def outside_grid(results: Mapping[str, AttackResult]) -> dict[str, AttackResult]:
    """Return the attacks that are no cell of the grid."""
    return {name: leak for name, leak in results.items() if name not in GRID}


def grid_tables(data: ReportData) -> list[GridTable]:
    """Return the grid order by order, the usual one first; none without a grid."""
    runs = [one for one in data.runs if GRID.keys() & one.audit.results.keys()]
    if not runs:
        return []
    orders = sorted(ALPHAS, key=lambda alpha: (alpha != FIRST, alpha))
    return [_grid_table(runs, alpha) for alpha in orders]


def _grid_table(runs: Sequence[Findings], alpha: float) -> GridTable:
    cells = [GridCell(part, share, alpha) for part in SLICES for share in SHARES]
    rows = [
        GridRow(one.label, who, tuple(_grid_cell(results, place) for place in cells))
        for one in runs
        for who, results in (
            ("server", one.audit.part(SERVER_MODEL)),
            ("clients", one.audit.results),
        )
        if results
    ]
    named = (
        number
        for number, place in enumerate(cells)
        if all(_is_headline(one, place) for one in runs)
    )
    return GridTable(cells[0].order, tuple(rows), next(named, None))


def _grid_cell(results: Mapping[str, AttackResult], place: GridCell) -> TableCell:
    leak = results.get(place.attack)
    return TableCell.of(leak.auroc) if leak else TableCell("not made")


def _is_headline(one: Findings, place: GridCell) -> bool:
    leak = one.audit.results.get(place.attack)
    return leak is not None and leak.settings == one.audit.headline.settings


def headline_rows(data: ReportData) -> TableRows:
    """Return one attack on server and clients, where both were attacked."""
    rows: TableRows = []
    for one in data.runs:
        if one.gain is not None and one.both is not None:
            client, server = (TableCell.of(leak.auroc) for leak in one.both)
            gain = TableCell.of(one.gain, signed=True)
            rows.append((one.label, server, client, gain))
    return rows
