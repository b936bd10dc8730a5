"""Tables of attacks: all of them, by class, MaxRényi's grid, on foreign non-members.

With FedRand's: table 4, the grid on the server's model and on the clients', and table 1,
what they write, beside what was sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from markupsafe import Markup

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.server_model import SERVER_MODEL
from privaudit.auditing.scenario import ALPHAS, SHARES, SLICES, GridCell, grid_cells
from privaudit.report.report_data import MOST_CLASSES, Findings, ReportData
from privaudit.report.wording import NOTHING, TableCell, TableRows, heading
from privaudit.statistics.captions.scores import METRICS
from privaudit.statistics.estimate import Estimate

_NAMED = Markup("<code>{}</code><i>named beforehand</i>")


def attack_rows(data: ReportData) -> TableRows:
    """Return the attacks of each run, in the scenario's order."""
    rows: TableRows = []
    for one in data.runs:
        for found in outside_grid(one.audit.results).values():
            is_headline = found is one.audit.headline
            auroc = TableCell.of(found.auroc)
            row = (
                one.label,
                (_NAMED if is_headline else Markup("<code>{}</code>")).format(
                    found.attack
                ),
                str(len(found.clients)),
                replace(auroc, note=f"n = {auroc.counts}"),
                TableCell.of(found.success),
                TableCell.of(found.success_plain),
                TableCell.of(found.advantage, signed=True),
                found.threshold,
            )
            rows.append(row)
    return rows


def class_rows(data: ReportData) -> TableRows:
    """Return each run's classes; no row where no run has several."""
    rows: TableRows = [
        (
            one.label,
            leak.name,
            f"{leak.n[0]} + {leak.n[1]}",
            TableCell.of(leak.auroc) if leak.auroc else NOTHING,
            leak.standing,
        )
        for one in data.runs
        for leak in one.classes
    ]
    return rows if data.have_classes else []


def drawn_sentence(data: ReportData) -> str:
    """Say which classes have no row in the picture; nothing if all have."""
    count = len({leak.name for one in data.runs for leak in one.classes})
    if count <= MOST_CLASSES:
        return ""
    return (
        f"The figure shows the {MOST_CLASSES} classes with the most records of "
        f"{count}; the table has all."
    )


FIRST = 2.0  # the order that is shown open
GRID = {cell.attack: cell for cell in grid_cells()}


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
        rows: Two for each run whose server's model was attacked too, else one.
        named: Number of the column that is the headline attack; None if it is of
            another order, or not of the grid.
    """

    order: str
    rows: tuple[GridRow, ...]
    named: int | None


def outside_grid(results: Mapping[str, AttackResult]) -> dict[str, AttackResult]:
    """Return the attacks that are no cell of the grid."""
    return {name: result for name, result in results.items() if name not in GRID}


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
        GridRow(one.label, who, tuple(_grid_cell(results, cell) for cell in cells))
        for one in runs
        for who, results in (
            ("server", one.audit.part(SERVER_MODEL)),
            ("clients", one.audit.results),
        )
        if results
    ]
    named = (
        number
        for number, cell in enumerate(cells)
        if all(_is_headline(one, cell) for one in runs)
    )
    return GridTable(cells[0].order, tuple(rows), next(named, None))


def _grid_cell(results: Mapping[str, AttackResult], cell: GridCell) -> TableCell:
    result = results.get(cell.attack)
    return TableCell.of(result.auroc) if result else TableCell("not made")


def _is_headline(one: Findings, cell: GridCell) -> bool:
    result = one.audit.results.get(cell.attack)
    return result is not None and result.settings == one.audit.headline.settings


def headline_rows(data: ReportData) -> TableRows:
    """Return one attack on server and clients, where both were attacked."""
    rows: TableRows = []
    for one in data.runs:
        if one.gain is not None and one.both is not None:
            client, server = (TableCell.of(result.auroc) for result in one.both)
            gain = TableCell.of(one.gain, signed=True)
            rows.append((one.label, server, client, gain))
    return rows


_WAYS = ("bytes_up", "bytes_down")


def written_rows(data: ReportData) -> tuple[list[str], TableRows]:
    """Return metrics, and how well models write on all test records.

    Two rows for each run: its server's model, and its clients' on average; none where
    no model writes.
    """
    each = [
        (one.label, who, estimates)
        for one in data.writers.runs
        for who, estimates in _written(one.audit).items()
        if estimates
    ]
    known = dict.fromkeys(name for *_, estimates in each for name in estimates)
    names = [name for name in METRICS if name in known]
    names += [name for name in known if name not in names]
    none = TableCell("-")
    rows: TableRows = [
        (label, who, *(TableCell.of(e[n]) if n in e else none for n in names))
        for label, who, e in each
    ]
    return list(map(heading, names)), rows


def _written(audit: Audit) -> dict[str, Mapping[str, Estimate]]:
    """Return each metric on all test records, of the server's and clients' models."""
    utility = audit.measured_utility
    if utility.captions:
        return {who: utility.captions.get(who, {}) for who in ("server", "clients")}
    both = {"server": utility.server, "clients": utility.everywhere}
    return {who: {utility.metric: e} if e else {} for who, e in both.items()}


def traffic_rows(data: ReportData) -> TableRows:
    """Return the bytes of a round, on average; no row where no model writes.

    Of several runs also the change of the sum, against the first.
    """
    if not data.writers.runs:
        return []
    sent = [
        [fmean(line[way] for line in a.run.metrics) for way in _WAYS]
        for a in data.audits
    ]
    first, several = sum(sent[0]), len(sent) > 1
    rows: TableRows = []
    for number, (one, ways) in enumerate(zip(data.runs, sent, strict=True)):
        shown, change = map(size, (*ways, sum(ways))), ""
        if number and first:
            change = f"{100 * (sum(ways) / first - 1):+.1f} %"
        rows.append((one.label, *shown, *[change] * several))
    return rows


def size(count: float | int) -> str:
    """Return a number of bytes for people.

    Example:
        >>> size(983056)
        '983 kB'
    """
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * least:  # 999,999 bytes are 1 MB
            number = count / least
            return f"{number:{'.0f' if number >= 100 else '.3g'}} {unit}"
    return f"{count:.0f} bytes"
