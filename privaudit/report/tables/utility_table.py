"""A utility table on disk: Markdown, CSV, JSON and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privaudit.core.formatting import epsilon, markdown_table, one_line, small
from privaudit.core.storage import storage_errors, write_bytes, write_json
from privaudit.evaluation.tables.backbones import ran_on
from privaudit.evaluation.tables.metrics import Metric
from privaudit.evaluation.tables.outcomes import LAST
from privaudit.evaluation.tables.parts import Column, TablePanel, TableRow
from privaudit.evaluation.tables.plan import Over
from privaudit.evaluation.tables.table import CellSummary, UtilityTable, agreeing_pairs
from privaudit.report.figures.figure_style import to_png
from privaudit.report.figures.utility_figure import utility_figure
from privaudit.report.tables.utility_records import (
    as_csv,
    as_json,
    cell_records,
    run_records,
)
from privaudit.report.tables.utility_words import about_units, title

NOTHING = "\u2013"
VIEWS = ("server", "server-aggregate", "peer", "released")


def write_utility_table(table: UtilityTable, folder: Path, name: str) -> str:
    """Write NAME.md, .json, .png, .csv and -runs.csv, and return the Markdown.

    Raises:
        StorageError: The folder cannot be written.
    """
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text = as_markdown(table)
    write_bytes(folder / f"{name}.md", text.encode())
    write_bytes(folder / f"{name}.csv", as_csv(cell_records(table)).encode())
    write_bytes(folder / f"{name}-runs.csv", as_csv(run_records(table)).encode())
    write_json(folder / f"{name}.json", as_json(table))
    write_bytes(folder / f"{name}.png", to_png(utility_figure(table)))
    return text


def as_markdown(table: UtilityTable) -> str:
    """Return the tables of all metrics, what is certified, and what the numbers are."""
    plan = table.plan
    parts = [f"# {plan.title}", plan.source, ran_on(plan)]
    for panel in plan.panels:
        parts += _panel_parts(table, panel)
    for metric in () if plan.panels else plan.metrics:
        parts += _metric_parts(table, metric)
    parts += [_privacy(table), _failures(table), _remarks(table)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _panel_parts(table: UtilityTable, panel: TablePanel) -> list[str]:
    """Return a table of one column, with metrics in its place."""
    plan, column = table.plan, table.plan.columns[0]
    over = _over(table, plan.over)
    heading = f"{panel.label}, {over}" if panel.label else over.capitalize()
    body = [
        [row.label, *(_text(table, row, column, metric) for metric in panel.metrics)]
        for row in plan.rows
    ]
    heads = {metric: panel.head(metric) for metric in panel.metrics}
    counts = [
        (head, *agreeing_pairs(table, column, metric)) for metric, head in heads.items()
    ]
    return [
        f"## {heading}",
        markdown_table(["", *heads.values()], body),
        _pairs(counts),
    ]


def _metric_parts(table: UtilityTable, metric: Metric) -> list[str]:
    plan = table.plan
    parts = [f"## {title(plan, metric)}, {_over(table, plan.over)}"]
    for group in plan.groups:
        parts += [group[0].group and f"**{group[0].group}**"]
        parts += [_metric_table(table, group, metric)]
    return [*parts, _order(table, metric)]


def _over(table: UtilityTable, over: Over) -> str:
    if over == "last" or table.averaged <= 1:
        return "last round"
    which_rounds = "all" if table.rounds == {table.averaged} else "the last"
    return f"mean of {which_rounds} {table.averaged} rounds"


def _metric_table(table: UtilityTable, group: Sequence[Column], metric: Metric) -> str:
    body = [
        [row.label, *(_text(table, row, column, metric) for column in group)]
        for row in table.plan.rows
    ]
    heads = [column.label for column in group]
    return markdown_table(
        [table.plan.across, *heads], [line for line in body if set(line[1:]) != {""}]
    )


def _text(table: UtilityTable, row: TableRow, column: Column, metric: Metric) -> str:
    cell = table.cell(row, column, metric, table.plan.over)
    if cell is None:
        return ""
    paper = f" ({cell.paper.text})" if cell.paper else ""
    return f"{_ours(cell, len(table.plan.seeds))}{paper}"


def _ours(cell: CellSummary, seeds: int) -> str:
    """Return a cell's number; none where a run failed, for the others are a choice."""
    if cell.failed:
        return f"**{cell.failed} of {seeds} failed**"
    if cell.mean is None:
        return NOTHING
    spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
    return f"{cell.mean.value:.2f}{spread}"


def _order(table: UtilityTable, metric: Metric) -> str:
    counts = [
        (column.name, *agreeing_pairs(table, column, metric))
        for column in table.plan.columns
    ]
    return _pairs(counts)


def _pairs(counts: Sequence[tuple[str, int, int]]) -> str:
    """Say how far the order of rows is the paper's."""
    agreements = [
        f"{agree} of {pairs}" + (f" ({name})" if len(counts) > 1 else "")
        for name, agree, pairs in counts
        if pairs
    ]
    if not agreements:
        return ""
    return (
        f"Pairs of rows in the paper's order, by means alone: {', '.join(agreements)}."
    )


def _privacy(table: UtilityTable) -> str:
    """Return claimed and certified epsilons, where a row claims any."""
    rows = [
        line
        for row, column in table.plan.cells
        if (line := _privacy_row(table, row, column))
    ]
    if not rows:
        return ""
    header = [
        "",
        table.plan.across,
        "ε claimed",
        "δ",
        "unit and neighbours",
        *(f"certified, {view}" for view in VIEWS),
    ]
    grid = markdown_table(header, rows)
    return (
        f"## ε claimed and certified\n\n{grid}\n\nClaimed: by the method's own "
        "formula. Certified: proved for the mechanism as applied, for that unit and "
        "neighbours, against what that adversary sees; the largest over seeds, and "
        "“none” where nothing is proved. The runs follow from their seeds: repeatable, "
        "not private. It is what they would have under secret keys."
    )


def _privacy_row(table: UtilityTable, row: TableRow, column: Column) -> list[str]:
    outcomes = table.outcomes_of(row.label, column.name)
    claims = [o for o in outcomes if o.claimed and o.delta is not None]
    if not claims:
        return []
    proved = [_largest([o.certified.get(view) for o in claims]) for view in VIEWS]
    deltas = sorted({small(o.delta) for o in claims if o.delta is not None})
    claimed = _largest([o.claimed for o in claims])
    whom = ", ".join(sorted({o.neighbours for o in claims if o.neighbours}))
    return [row.label, column.name, claimed, ", ".join(deltas), whom, *proved]


def _largest(found: Sequence[float | None]) -> str:
    proved = [value for value in found if value is not None]
    return epsilon(max(proved) if len(proved) == len(found) else None)


def _failures(table: UtilityTable) -> str:
    if not table.failures:
        return ""
    lines = [f"- {run.label}: {outcome.error}" for run, outcome in table.failures]
    return "## Runs that failed\n\n" + "\n".join(one_line(line) for line in lines)


def _remarks(table: UtilityTable) -> str:
    """Say what the numbers are, and what ± does not cover."""
    plan, count = table.plan, len(table.plan.seeds)
    seeds = ", ".join(map(str, plan.seeds))
    what = "mean ± standard deviation over" if count > 1 else "from"
    remarks = [
        f"Per cent, {what} {count} seed{'s' * (count > 1)} ({seeds})"
        + ("; in brackets: the paper's." if plan.paper else ".")
        + " Bars in the picture are standard deviations, too." * (count > 1),
        "A seed moves the partition, which of its records a client trains on where it "
        "does not train on all, the start, the batches and the noise. The data, the "
        "backbone and its pretraining stay: ± does not cover another backbone.",
        *about_units(plan),
        *_about_rounds(table),
        *plan.notes,
    ]
    return "\n".join(f"- {remark}" for remark in remarks)


def _about_rounds(table: UtilityTable) -> list[str]:
    differences = _differences(table)
    if not differences:
        return []
    counts = " or ".join(map(str, sorted(table.rounds)))
    return [
        f"Rounds: {counts}. The means over the last {LAST} rounds and those of the "
        f"last one differ by at most {max(differences):.2f}."
    ]


def _differences(table: UtilityTable) -> list[float]:
    differences = []
    for row, column in table.plan.cells:
        for metric in table.plan.measured:
            pair: list[Any] = [
                table.cell(row, column, metric, over) for over in ("last10", "last")
            ]
            if all(cell and cell.mean for cell in pair):
                differences.append(abs(pair[0].mean.value - pair[1].mean.value))
    return differences
