"""The trade-off table in the terminal: a row for each run, or its numbers in stacks."""

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from privaudit.auditing.audit import Audit
from privaudit.privacy.certificate import guarantee_of, reconstruction_sentence
from privaudit.report.columns import Column, TableKind, columns
from privaudit.report.report_data import Findings, ReportData, same_columns
from privaudit.report.tables.parts import part_remarks
from privaudit.report.wording import (
    GROUPS,
    TableCell,
    audits_made,
    counts_groups,
    remote_code,
    repeatable,
    strength,
    unpaid,
)

_WIDE = 116  # columns from which everything fits side by side
_Texts = tuple[str, list[str]]  # a head, and a text for each run


def print_table(audits: Sequence[Audit], console: Console | None = None) -> None:
    """Print the trade-off table, in two parts where the terminal is narrow.

    Cells of a single run hold several lines, which the column's head names. Of several
    runs only what they are compared by is printed; their report has the other rates.
    """
    console, data = console or Console(), ReportData.of(audits)
    shown, most = _texts(data), 18 if len(audits) == 1 else 36
    for part in [shown] if console.width >= _WIDE else [shown[:2], shown[2:]]:
        console.print(_table([one.label for one in data.runs], part, most=most))
    for one in data.runs:
        for remark in _remarks(one):
            console.print(Text(f"{one.label}: {remark}"))
    console.print(Text(_legend(data), style="dim"))


def _texts(data: ReportData) -> list[_Texts]:
    """Return the columns as text, those of one stack below each other."""
    table: TableKind = "run" if len(data.runs) == 1 else "runs"
    found = list[_Texts]()
    for stack, group in groupby(columns(data, table), lambda column: column.stack):
        several: list[Column] = list(group)
        parts = [several] if stack and table == "run" else [[one] for one in several]
        for part in parts:
            cells = [
                [str(column.cell(one).number) for column in part] for one in data.runs
            ]
            head = "\n".join(column.heads[table] for column in part)
            found.append((head, ["\n".join(texts) for texts in cells]))
    return found


def _remarks(one: Findings) -> list[str]:
    """Return what a run's row has no room for."""
    audit = one.audit
    unusual = audit.verdict.kind not in ("leaks", "no evidence")
    allowed = reconstruction_sentence(audit.certificate)
    remarks = [
        audit.verdict.sentence if unusual else "",
        one.strength.sentence if one.strength.is_weak else "",
        *audit.scenario.notes.values(),
        audits_made(audit) if audit.tally.different > 1 or audit.tally.planned else "",
        _counted(audit),
        remote_code(audit),
        repeatable(audit),
        allowed and f"By the certified ε, {allowed}.",
        *unpaid(audit),
        one.others,
        *same_columns(audit),
        *part_remarks(audit),
    ]
    return [remark for remark in remarks if remark]


def _counted(audit: Audit) -> str:
    """Say what n counts, where that is no record."""
    if audit.scenario.unit == "client":
        return "n counts whole clients."
    return f"n counts {GROUPS}." if counts_groups(audit) else ""


def _table(names: Sequence[str], columns: Sequence[_Texts], *, most: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, padding=(0, 1), pad_edge=False)
    tallest = max(head.count("\n") for head, _ in columns)
    table.add_column(Text("Run" + "\n" * tallest), max_width=most, overflow="fold")
    for head, _ in columns:
        padding = "\n" * (tallest - head.count("\n"))  # rich aligns heads below
        table.add_column(Text(head + padding), no_wrap=True)
    for index, name in enumerate(names):
        cells = [Text(texts[index]) for _, texts in columns]
        is_high = any("\n" in str(cell) for cell in cells)
        table.add_row(
            Text(name), *cells, end_section=is_high and index < len(names) - 1
        )
    return table


def headlines(data: ReportData) -> str:
    """Return the attacks that verdicts are about, each with the clients it was made on."""
    made = (f"{strength(a.headline)} on {_clients(a)}" for a in data.audits)
    return " or ".join(dict.fromkeys(made))


def _clients(audit: Audit) -> str:
    whole, result = audit.scenario.unit == "client", audit.headline
    count = sum(result.auroc.n) if whole else len(result.clients)
    return f"{count} client{'s' * (count != 1)}"


def _legend(data: ReportData) -> str:
    guarantees = " or ".join(
        dict.fromkeys(guarantee_of(audit.certificate) for audit in data.audits)
    )
    counts = dict.fromkeys(TableCell.of(audit.auroc).counts for audit in data.audits)
    compared = len(data.runs) > 1
    n = f" (n = {', '.join(counts)})" if compared and len(counts) == 1 else ""
    rates = (
        "AUROC 0.5 is a coin toss."
        if compared
        else "AUROC 0.5 and success 0.5 are a coin toss. “unresolved”: too few "
        "non-members for that rate."
    )
    return (
        f"Scenario: {data.audits[0].scenario.name}. Attack: {headlines(data)}{n}. "
        f"{rates} ε claimed: the method's own formula; certified: proved for this "
        f"adversary, for {guarantees}."
    )
