"""MaxRényi's grid on the server's model and on the clients': FedRand's table 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.default_attacks import ALPHAS, SHARES, SLICES, GridCell, places
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.report.tables.parts import both_models, gain_of_rebuilding
from privaudit.report.tables.table import TableCell

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


@dataclass(frozen=True)
class HeadlineRow:
    """One attack on both sorts of models."""

    run: str
    attack: str
    server: TableCell
    client: TableCell
    difference: TableCell


def outside_grid(results: Mapping[str, AttackResult]) -> dict[str, AttackResult]:
    """Return the attacks that are no cell of the grid."""
    return {name: leak for name, leak in results.items() if name not in GRID}


def grid_tables(audits: Sequence[Audit], labels: Sequence[str]) -> list[GridTable]:
    """Return the grid order by order, the usual one first; none without a grid."""
    runs = [
        (label, audit)
        for label, audit in zip(labels, audits, strict=True)
        if GRID.keys() & audit.results.keys()
    ]
    if not runs:
        return []
    orders = sorted(ALPHAS, key=lambda alpha: (alpha != FIRST, alpha))
    return [_grid_table(runs, alpha) for alpha in orders]


def _grid_table(runs: Sequence[tuple[str, Audit]], alpha: float) -> GridTable:
    rows = [
        GridRow(label, who, tuple(_cell(results, place) for place in _columns(alpha)))
        for label, audit in runs
        for who, results in (
            ("server", audit.part(SERVER_MODEL)),
            ("clients", audit.results),
        )
        if results
    ]
    return GridTable(_columns(alpha)[0].order, tuple(rows), _named(runs, alpha))


def _columns(alpha: float) -> list[GridCell]:
    return [GridCell(part, share, alpha) for part in SLICES for share in SHARES]


def _cell(results: Mapping[str, AttackResult], place: GridCell) -> TableCell:
    leak = results.get(place.attack)
    return TableCell.of(leak.auroc) if leak else TableCell("not made")


def _named(runs: Sequence[tuple[str, Audit]], alpha: float) -> int | None:
    for number, place in enumerate(_columns(alpha)):
        if all(_is_headline(audit, place) for _, audit in runs):
            return number
    return None


def _is_headline(audit: Audit, place: GridCell) -> bool:
    leak = audit.results.get(place.attack)
    return leak is not None and leak.settings == audit.headline.settings


def headline_rows(audits: Sequence[Audit], labels: Sequence[str]) -> list[HeadlineRow]:
    """Return one attack on server and clients, where both were attacked."""
    rows = []
    for label, audit in zip(labels, audits, strict=True):
        gain, found = gain_of_rebuilding(audit), both_models(audit)
        if gain is not None and found is not None:
            client, server = (TableCell.of(leak.auroc) for leak in found)
            change = TableCell.of(gain, signed=True)
            rows.append(HeadlineRow(label, found[0].attack, server, client, change))
    return rows
