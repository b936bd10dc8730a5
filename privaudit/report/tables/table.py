"""The trade-off table: one row of plain words for each run."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from privaudit.auditing.audit import Audit
from privaudit.core.formatting import epsilon, percent
from privaudit.privacy.reconstruction_robustness import reconstruction_sentence
from privaudit.report.labels import run_labels
from privaudit.report.tables.other_attacks import others_sentence, same_columns
from privaudit.report.tables.parts import part_remarks
from privaudit.report.wording import (
    GROUPS,
    certified,
    counts_groups,
    decision,
    guarantee,
    heading,
    interval,
    metric,
    point,
    remote_code,
    repeatable,
    strength,
    tried,
    unpaid,
    untrained,
)
from privaudit.statistics.estimate import Estimate

_WIDE = 116  # columns from which everything fits side by side


@dataclass(frozen=True)
class TableCell:
    """A number as it is printed.

    Attributes:
        value: With three decimals, or "unresolved".
        interval: In brackets, or why there is none; empty where nothing was measured.
        counts: What n is.
    """

    value: str
    interval: str = ""
    counts: str = ""

    @classmethod
    def of(cls, estimate: Estimate, *, signed: bool = False) -> "TableCell":
        """Return an estimate as it is printed."""
        counts = " + ".join(str(count) for count in estimate.n)
        return cls(point(estimate, signed=signed), interval(estimate), counts)

    def __str__(self) -> str:
        """Return value and interval; reasons are left to where there is room."""
        if not self.interval.startswith("["):
            return self.value
        return f"{self.value} {self.interval}"


@dataclass(frozen=True)
class AurocRow:
    """A class of records, or what may go with exposure, as a page shows it."""

    name: str
    n: tuple[int, int]
    auroc: TableCell | None
    standing: str


@dataclass(frozen=True)
class TradeoffRow:
    """A run in the trade-off table.

    Attributes:
        run: Its name among the others.
        confidence: Coverage of all intervals.
        verdict: "Leaks", "No leak found" or "Underpowered"; on a second line what is not
            proved, where nothing was found.
        attack: The headline attack, which all rates are of.
        local: Accuracy, or what else is measured, on a client's own classes.
        neighbour: On the other clients' classes.
        gain: Local accuracy beyond the untrained model's.
        auroc: Averaged within clients.
        tpr: True-positive rate by false-positive rate, the latter in per cent.
        success: Share of right guesses, averaged over classes.
        advantage: True- less false-positive rate of the guesses.
        claimed: Epsilon by the method's own formula, or "none".
        certified: Epsilon that is proved for this adversary, or "none"; in brackets
            where the noise follows from a seed: repeatable, not private.
    """

    run: str
    confidence: float
    verdict: str
    attack: str
    local: TableCell
    neighbour: TableCell
    gain: TableCell
    auroc: TableCell
    tpr: dict[str, TableCell]
    success: TableCell
    advantage: TableCell
    claimed: str
    certified: str


def tradeoff_rows(audits: Sequence[Audit]) -> list[TradeoffRow]:
    """Return the trade-off table; the terminal and the page print the same numbers."""
    labels = run_labels(audits)
    return [_row(label, audit) for label, audit in zip(labels, audits, strict=True)]


def _row(label: str, audit: Audit) -> TradeoffRow:
    leak, utility = audit.headline, audit.utility
    local = neighbour = gain = TableCell("-")
    if utility is not None:
        local = TableCell.of(utility.local)
        neighbour = _cell(utility.neighbour, "all own")
        gain = _cell(utility.gain, "-", signed=True)
    return TradeoffRow(
        run=label,
        confidence=leak.auroc.confidence,
        verdict=decision(audit).replace(", ", "\n"),
        attack=leak.attack,
        local=local,
        neighbour=neighbour,
        gain=gain,
        auroc=TableCell.of(leak.auroc),
        tpr={percent(rate): TableCell.of(tpr) for rate, tpr in leak.tpr_at_fpr.items()},
        success=TableCell.of(leak.success),
        advantage=TableCell.of(leak.advantage, signed=True),
        claimed=epsilon(audit.claimed_epsilon),
        certified=certified(audit),
    )


def _cell(
    estimate: Estimate | None, missing: str, *, signed: bool = False
) -> TableCell:
    return (
        TableCell(missing)
        if estimate is None
        else TableCell.of(estimate, signed=signed)
    )


def print_table(audits: Sequence[Audit], console: Console | None = None) -> None:
    """Print the trade-off table, in two parts where the terminal is narrow.

    Cells of a single run hold several lines, which the column's head names. Of several
    runs only what they are compared by is printed; their report has the other rates.
    """
    console = console or Console()
    rows = tradeoff_rows(audits)
    columns = _columns(audits, rows) if len(audits) == 1 else _compared(audits, rows)
    parts = [columns] if console.width >= _WIDE else [columns[:2], columns[2:]]
    names, most = [row.run for row in rows], 18 if len(rows) == 1 else 36
    for part in parts:
        console.print(_table(names, part, most=most))
    for row, audit in zip(rows, audits, strict=True):
        for remark in _remarks(audit):
            console.print(Text(f"{row.run}: {remark}"))
    console.print(Text(_legend(audits, rows), style="dim"))


def _remarks(audit: Audit) -> list[str]:
    """Return what a run's row has no room for."""
    unusual = audit.verdict.kind in ("reversed", "sampling unknown")
    remarks = [
        audit.verdict.sentence if unusual else "",
        audit.scenario.note,
        tried(audit) if audit.tried.different > 1 or audit.tried.planned else "",
        _counted(audit),
        remote_code(audit),
        repeatable(audit),
        _reconstructed(audit),
        *unpaid(audit),
        others_sentence(audit),
        *same_columns(audit),
        *part_remarks(audit),
    ]
    return [remark for remark in remarks if remark]


def _counted(audit: Audit) -> str:
    """Say what n counts, where that is no record."""
    if audit.scenario.unit == "client":
        return "n counts whole clients."
    return f"n counts {GROUPS}." if counts_groups(audit) else ""


def _reconstructed(audit: Audit) -> str:
    """Say how likely a record can be reconstructed, where an epsilon is certified."""
    allowed = reconstruction_sentence(audit.certificate)
    return allowed and f"By the certified ε, {allowed}."


Column = tuple[str, list[str]]


def _compared(audits: Sequence[Audit], rows: Sequence[TradeoffRow]) -> list[Column]:
    """Return what several runs are compared by, in one line for each."""
    confidence, counts = percent(rows[0].confidence), [row.auroc.counts for row in rows]
    attacks = [row.attack for row in rows]
    useful = (
        f"{heading(metric(audits))}\n[{confidence}]",
        [str(row.local) for row in rows],
    )
    return [
        *([useful] if metric(audits) else []),
        (f"AUROC\n[{confidence}]", [str(row.auroc) for row in rows]),
        *([("Attack", attacks)] if len(set(attacks)) > 1 else []),
        ("Verdict", [row.verdict for row in rows]),
        *([] if _alike(rows) else [("n members\n+ others", counts)]),
        ("ε claimed,\ncertified", [f"{r.claimed}, {r.certified}" for r in rows]),
    ]


def _alike(rows: Sequence[TradeoffRow]) -> bool:
    return len({row.auroc.counts for row in rows}) == 1


def _columns(audits: Sequence[Audit], rows: Sequence[TradeoffRow]) -> list[Column]:
    rates = list(rows[0].tpr)
    confidence = percent(rows[0].confidence)
    useful = (
        f"{heading(metric(audits))} [{confidence}]\nown classes\nothers'\n"
        f"over {untrained(audits)}",
        [f"{r.local}\n{r.neighbour}\n{r.gain}" for r in rows],
    )
    return [
        *([useful] if metric(audits) else []),
        (
            f"AUROC [{confidence}]\nn members + others\nverdict",
            [f"{r.auroc}\nn = {r.auroc.counts}\n{r.verdict}" for r in rows],
        ),
        (
            "\n".join(["TPR at FPR", *rates]),
            ["\n".join(map(str, r.tpr.values())) for r in rows],
        ),
        (
            f"Success rate [{confidence}]\nadvantage",
            [f"{r.success}\n{r.advantage}" for r in rows],
        ),
        ("ε claimed\ncertified", [f"{r.claimed}\n{r.certified}" for r in rows]),
    ]


def _table(names: Sequence[str], columns: Sequence[Column], *, most: int) -> Table:
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


def headlines(audits: Sequence[Audit]) -> str:
    """Return the attacks that verdicts are about, each with the clients it was made on."""
    made = (f"{strength(a.headline)} on {_clients(a)}" for a in audits)
    return " or ".join(dict.fromkeys(made))


def _clients(audit: Audit) -> str:
    whole, leak = audit.scenario.unit == "client", audit.headline
    count = sum(leak.auroc.n) if whole else len(leak.clients)
    return f"{count} client{'s' * (count != 1)}"


def _legend(audits: Sequence[Audit], rows: Sequence[TradeoffRow]) -> str:
    guarantees = " or ".join(dict.fromkeys(map(guarantee, audits)))
    compared = len(rows) > 1
    counts = f" (n = {rows[0].auroc.counts})" if compared and _alike(rows) else ""
    rates = (
        "AUROC 0.5 is a coin toss."
        if compared
        else "AUROC 0.5 and success 0.5 are a coin toss. “unresolved”: too few "
        "non-members for that rate."
    )
    return (
        f"Scenario: {audits[0].scenario.name}. Attack: {headlines(audits)}{counts}. "
        f"{rates} ε claimed: the method's own formula; certified: proved for this "
        f"adversary, for {guarantees}."
    )
