"""A utility table on disk: Markdown, CSV, JSON and a picture."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import (
    as_csv,
    epsilon,
    markdown_table,
    one_line,
    small,
)
from privaudit.core.portable_bits import counted
from privaudit.core.storage import storage_errors, to_json
from privaudit.privacy.certificate import CertifiedView
from privaudit.report.figures.figure_style import to_png
from privaudit.runs.own_files import check_folder, write_output
from privaudit_tools.tables.backbones import ran_on, span
from privaudit_tools.tables.matrix import RESULTS, read_page
from privaudit_tools.tables.metrics import Metric
from privaudit_tools.tables.parts import Column, TablePanel, TableRow
from privaudit_tools.tables.plan import Over, TablePlan, read_plan
from privaudit_tools.tables.schedule import names_by_seed
from privaudit_tools.tables.stored import StoredTable, read_stored
from privaudit_tools.tables.table import CellSummary, UtilityTable, agreeing_pairs
from privaudit_tools.tables.utility_figure import utility_figure
from privaudit_tools.tables.utility_records import (
    as_json,
    cell_records,
    run_records,
)
from privaudit_tools.tables.utility_words import (
    about_units,
    heads,
    rounds_of,
    title,
)

NOTHING = "\u2013"
_BRACKETS = "; in brackets: the paper's"
_STORED = re.compile(
    r"(<!-- stored: ([^\n]+?) -->)\n.*?(<!-- end of stored -->)", re.DOTALL
)
_UNLIKE = "Unlike things: "
VIEWS = get_args(CertifiedView)


def write_utility_table(table: UtilityTable, folder: Path, name: str) -> str:
    """Write NAME.md, .json, .png, .csv and -runs.csv, and return the Markdown.

    Raises:
        StorageError: The folder cannot be written.
    """
    with storage_errors(check_folder(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    text = as_markdown(table)
    write_output(folder / f"{name}.md", text.encode())
    write_output(folder / f"{name}.csv", as_csv(cell_records(table)).encode())
    write_output(folder / f"{name}-runs.csv", as_csv(run_records(table)).encode())
    write_output(folder / f"{name}.json", to_json(as_json(table)))
    write_output(folder / f"{name}.png", to_png(utility_figure(table)))
    return text


def as_markdown(table: UtilityTable) -> str:
    """Return the tables of all metrics, what is certified, and what the numbers are."""
    whole, table = table, table.shown
    plan = table.plan
    parts = [f"# {plan.title}", plan.source, ran_on(plan)]
    for panel in plan.panels:
        parts += _panel_parts(table, panel)
    for metric in () if plan.panels else plan.metrics:
        parts += _metric_parts(table, metric)
    parts += [_privacy(table), _failures(table), _remarks(table, whole)]
    return "\n\n".join(part for part in parts if part) + "\n"


def fill_stored(page: Path, folder: Path) -> bool:
    """Put stored tables where a page names them, and say whether that changed it.

    Args:
        page: Where what stands between ``<!-- stored: NAME -->`` and
            ``<!-- end of stored -->`` is replaced.
        folder: Of plans, with results/ for the tables' JSON.

    Raises:
        MissingFileError: There is no such page, or no such plan or table.
        ConfigError: It is not what `privaudit table` writes; or a page is no UTF-8.
    """
    old = read_page(page)
    new = _STORED.sub(lambda at: _filled(at, folder), old)
    if new != old:
        write_output(page, new.encode())
    return new != old


def write_stored(pages: Path, folder: Path) -> list[Path]:
    """Bring a folder's pages up to date with the stored tables, and return what changed.

    A stored table that no page names gets a page of its own, called as its plan is.

    Args:
        pages: Folder of pages in Markdown.
        folder: Of plans, with results/ for the tables' JSON.

    Raises:
        MissingFileError, ConfigError: As for `fill_stored`; or where the new page would
            stand is another.
    """
    texts = [read_page(page) for page in pages.glob("*.md")]
    named = {at[2] for text in texts for at in _STORED.finditer(text)}
    where = Path(os.path.relpath(folder, pages)).as_posix()
    for name in sorted(
        {path.stem for path in (folder / RESULTS).glob("*.json")} - named
    ):
        if (pages / f"{name}.md").exists():
            raise ConfigError(
                f"{pages / name}.md was to be written, and is a page without a place for "
                "the stored table. Put these two lines there, or call it otherwise: "
                f"<!-- stored: {name} --> <!-- end of stored -->"
            )
        text = _new_page(name, read_plan(folder / f"{name}.toml"), where)
        write_output(pages / f"{name}.md", text.encode())
    return [page for page in sorted(pages.glob("*.md")) if fill_stored(page, folder)]


def _new_page(name: str, plan: TablePlan, where: str) -> str:
    unlike = [note for note in plan.notes if note.startswith(_UNLIKE)]
    parts = [
        f"# {plan.title}",
        f"[Plan]({where}/{name}.toml) · [numbers]({where}/{RESULTS}/{name}.json)",
        *(f"\N{WARNING SIGN} {note.removeprefix(_UNLIKE)}" for note in unlike),
        f"<!-- stored: {name} -->\n<!-- end of stored -->",
    ]
    return "\n\n".join(parts) + "\n"


def _filled(at: re.Match[str], folder: Path) -> str:
    plan = read_plan(folder / f"{at[2]}.toml")
    table = read_stored(folder / RESULTS / f"{at[2]}.json")
    text = stored_markdown(table.beside(plan))
    return f"{at[1]}\n\n{text}\n\n{at[3]}"


def stored_markdown(table: StoredTable) -> str:
    """Return a stored table: groups of like columns below each other, by metric."""
    table = table.shown
    plan = table.plan
    over = _over(table, plan.over)

    def cells(metrics: Sequence[Metric]) -> list[CellSummary]:
        places = [(*place, metric) for place in plan.cells for metric in metrics]
        found = [table.cell(*place, plan.over) for place in places]
        return [cell for cell in found if cell]

    def about(metrics: Sequence[Metric]) -> str:
        paper = any(cell.paper for cell in cells(metrics))
        return f"{rounds_of(metrics, over)}{_BRACKETS * paper}*"

    parts = [ran_on(plan, table.seeds[0])]
    if any(one.bits for one in table.computed):
        parts += [f"**Computed in** {counted(table.computed)}."]
    for panel in plan.panels:
        name = f"{panel.label}, " if panel.label else ""
        parts += [f"*{name}{about(panel.metrics)}", _panel_table(table, panel)]
    for metric in () if plan.panels else filter(lambda m: cells([m]), plan.metrics):
        parts += [f"*{title(plan, metric)}, {about([metric])}"]
        alike: dict[tuple[str, ...], list[Sequence[Column]]] = {}
        for group in plan.groups:
            alike.setdefault(tuple(c.label for c in group), []).append(group)
        for labels, groups in alike.items():
            lines = [line for group in groups for line in _lines(table, group, metric)]
            parts += [markdown_table([plan.across, *heads(labels, metric)], lines)]
    return "\n\n".join(parts)


def _lines(
    table: StoredTable, group: Sequence[Column], metric: Metric
) -> list[list[str]]:
    """Return a line for each row, named with its group if there are several."""
    plan = table.plan
    name = f"{group[0].group}: " if len(plan.groups) > 1 and group[0].group else ""
    lines = [
        [name + row.label, *(_text(table, row, column, metric) for column in group)]
        for row in plan.rows
    ]
    return [line for line in lines if set(line[1:]) != {""}]


def _panel_parts(table: UtilityTable, panel: TablePanel) -> list[str]:
    """Return a table of one column, with metrics in its place."""
    over = rounds_of(panel.metrics, _over(table, table.plan.over))
    heading = f"{panel.label}, {over}" if panel.label else over.capitalize()
    counts = [
        (panel.head(metric), *agreeing_pairs(table, table.plan.columns[0], metric))
        for metric in panel.metrics
    ]
    return [f"## {heading}", _panel_table(table, panel), _pairs(counts)]


def _panel_table(table: UtilityTable | StoredTable, panel: TablePanel) -> str:
    column = table.plan.columns[0]
    body = [
        [row.label, *(_text(table, row, column, metric) for metric in panel.metrics)]
        for row in table.plan.rows
    ]
    return markdown_table(["", *map(panel.head, panel.metrics)], body)


def _metric_parts(table: UtilityTable, metric: Metric) -> list[str]:
    plan = table.plan
    over = rounds_of([metric], _over(table, plan.over))
    parts = [f"## {title(plan, metric)}, {over}"]
    for group in plan.groups:
        parts += [group[0].group and f"**{group[0].group}**"]
        parts += [_metric_table(table, group, metric)]
    return [*parts, _order(table, metric)]


def _over(table: UtilityTable | StoredTable, over: Over) -> str:
    if over == "last" or table.averaged <= 1:
        return "last round"
    which_rounds = "all" if table.rounds == {table.averaged} else "the last"
    return f"mean of {which_rounds} {table.averaged} rounds"


def _metric_table(table: UtilityTable, group: Sequence[Column], metric: Metric) -> str:
    body = [
        [row.label, *(_text(table, row, column, metric) for column in group)]
        for row in table.plan.rows
    ]
    above = heads([column.label for column in group], metric)
    return markdown_table(
        [table.plan.across, *above], [line for line in body if set(line[1:]) != {""}]
    )


def _text(
    table: UtilityTable | StoredTable, row: TableRow, column: Column, metric: Metric
) -> str:
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
    return f"Pairs of rows in the paper's order, in the means alone: {', '.join(agreements)}."


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
    lines = [f"- {label}: {outcome.error}" for label, outcome in table.failures]
    return "## Runs that failed\n\n" + "\n".join(one_line(line) for line in lines)


def _remarks(table: UtilityTable, whole: UtilityTable) -> str:
    """Say what the numbers are, what ± does not cover, and what was not run."""
    plan, count = table.plan, len(table.plan.seeds)
    seeds = ", ".join(map(str, plan.seeds))
    what = "mean ± standard deviation over" if count > 1 else "from"
    by_seed = names_by_seed(plan)
    computed = [one.computed for one in table.outcomes.values() if not one.error]
    remarks = [
        f"Per cent, {what} {count} seed{'s' * (count > 1)} ({seeds})"
        + ("; in brackets: the paper's." if plan.paper else ".")
        + " Bars in the picture are standard deviations, too." * (count > 1),
        "A seed moves the partition, which of its records a client trains on where it "
        "does not train on all, the start, the batches and the noise"
        + (", and what the plan names by {seed}" if by_seed else "")
        + ". The data, the backbone and its pretraining stay"
        + (" otherwise" if by_seed else "")
        + ": ± does not cover another backbone.",
        *about_units(plan),
        *_about_pieces(table, whole),
        *_about_rounds(table),
        *([f"Computed in {counted(computed)}."] if computed else []),
        *plan.notes,
    ]
    return "\n".join(f"- {remark}" for remark in remarks)


def _about_pieces(table: UtilityTable, whole: UtilityTable) -> list[str]:
    wanted = len(whole.plan.cells)
    counts = [len(table.outcomes_of(r.label, c.name)) for r, c in table.plan.cells]
    ran = [count for count in counts if count]
    if len(ran) == wanted and min(ran) == len(table.plan.seeds):
        return []
    few, many = min(ran), max(ran)
    seeds = f"{span(few, many)} seed{'s' * (many > 1)}"
    return [f"Run: {len(ran)} of the plan's {wanted} cells, with {seeds} each."]


def _about_rounds(table: UtilityTable) -> list[str]:
    differences = _differences(table)
    if not differences:
        return []
    counts = " or ".join(map(str, sorted(table.rounds)))
    if table.averaged <= 1:
        return [f"Rounds: {counts}; measured after the last."]
    return [
        f"Rounds: {counts}. The means over the last {table.averaged} rounds and those "
        f"of the last one differ by at most {max(differences):.2f}."
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
