"""The picture of a utility table: accuracy over its columns, a line for each row."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privaudit.report.figures.figure_style import (
    FAINT,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
)
from privaudit_tools.tables.metrics import Metric
from privaudit_tools.tables.parts import Column, TableRow
from privaudit_tools.tables.stored import StoredTable
from privaudit_tools.tables.table import CellSummary, UtilityTable
from privaudit_tools.tables.utility_words import label

_MARKERS = "osD^vPX"
_WIDTH = 0.35  # of the strip around a column's place that its rows share
_FEW = 5  # rows up to which the paper's lines are distinguishable too
_ABREAST = 4  # panels side by side, where metrics are columns

AnyTable = UtilityTable | StoredTable
Point = tuple[float, CellSummary]


def utility_figure(table: AnyTable) -> Figure:
    """Draw means with a standard deviation over seeds to either side.

    A panel for each metric and each group of columns. Hollow marks are the paper's
    means; where lines of many rows would cross, they are left out. What was not run has
    no panel.
    """
    table = table.shown
    if table.plan.panels:
        return _panels(table)
    plan = table.plan
    groups, alone = plan.groups, len(plan.columns) == 1
    high = 0.32 * len(plan.rows) + 1.1 if alone else 3.0 * len(groups) + 0.6
    with house_style():
        figure = new_figure(1.2 + 4.2 * len(plan.metrics), high)
        grid = figure.subplots(
            len(groups), len(plan.metrics), squeeze=False, sharey="col"
        )
        for group, line in zip(groups, grid, strict=True):
            for metric, axes in zip(plan.metrics, line, strict=True):
                draw = _draw_dots if alone else _draw_lines
                draw(axes, table, group, metric)
                _name(axes, label(plan, metric), _axis(plan.across, group), alone)
        if not alone:
            _legend(figure, table)
    return figure


def _panels(table: AnyTable) -> Figure:
    """Draw a small panel of dots for each metric, some to a line."""
    plan, metrics = table.plan, table.plan.measured
    abreast = min(_ABREAST, len(metrics))
    lines = -(-len(metrics) // abreast)
    with house_style():
        high = (0.28 * len(plan.rows) + 0.8) * lines + 0.3
        figure = new_figure(1.6 + 2.6 * abreast, high)
        grid = figure.subplots(lines, abreast, squeeze=False, sharey=True)
        for axes, metric in zip(grid.flat, metrics, strict=False):
            _draw_dots(axes, table, plan.columns, metric)
            axes.set_xlabel(label(plan, metric))
        for axes in list(grid.flat)[len(metrics) :]:
            axes.remove()
        if plan.paper:
            figure.supxlabel("filled: here, hollow: paper", fontsize="small")
    return figure


def _draw_dots(
    axes: Axes, table: AnyTable, group: Sequence[Column], metric: Metric
) -> None:
    """Draw one column: rows from top to bottom."""
    rows = table.plan.rows
    for place, row in enumerate(rows):
        for _, cell in _points(table, row, group, metric):
            if cell.mean and cell.is_whole:
                spread = cell.spread or 0.0
                axes.errorbar(
                    cell.mean.value, place, xerr=spread, fmt="o", color=colour(0),
                    markersize=5.5, elinewidth=1.1, capsize=2, zorder=3,
                )  # fmt: skip
            if cell.paper:
                axes.plot(
                    cell.paper.mean, place, "D", markersize=5, zorder=2,
                    markerfacecolor="none", markeredgecolor=colour(1),
                )  # fmt: skip
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    light_grid(axes)


def _draw_lines(
    axes: Axes, table: AnyTable, group: Sequence[Column], metric: Metric
) -> None:
    rows = table.plan.rows
    for index, row in enumerate(rows):
        aside = _WIDTH * ((index + 0.5) / len(rows) - 0.5)
        points = [(x + aside, cell) for x, cell in _points(table, row, group, metric)]
        _draw_ours(axes, points, row, index)
        if len(rows) <= _FEW:
            _draw_paper(axes, points, index)
    axes.set_xticks(range(len(group)), [column.label for column in group])
    axes.set_xlim(-0.5, len(group) - 0.5)
    light_grid(axes)


def _points(
    table: AnyTable, row: TableRow, group: Sequence[Column], metric: Metric
) -> list[Point]:
    cells = [table.cell(row, column, metric, table.plan.over) for column in group]
    return [(float(place), cell) for place, cell in enumerate(cells) if cell]


def _draw_ours(axes: Axes, points: Sequence[Point], row: TableRow, index: int) -> None:
    plotted = [(x, c.mean.value, c.spread) for x, c in points if c.mean and c.is_whole]
    axes.errorbar(
        [x for x, _, _ in plotted],
        [mean for _, mean, _ in plotted],
        yerr=[spread or 0.0 for _, _, spread in plotted],
        fmt=_MARKERS[index % len(_MARKERS)],
        linestyle=line_style(index),
        color=colour(index),
        markersize=5,
        elinewidth=1.1,
        capsize=2,
        linewidth=1.4,
        label=row.label,
        zorder=3,
    )


def _draw_paper(axes: Axes, points: Sequence[Point], index: int) -> None:
    plotted = [(x, cell.paper.mean) for x, cell in points if cell.paper]
    axes.plot(
        [x for x, _ in plotted],
        [mean for _, mean in plotted],
        _MARKERS[index % len(_MARKERS)],
        linestyle=(0, (1, 3)),
        linewidth=0.9,
        color=colour(index),
        markerfacecolor="none",
        markersize=4.5,
        zorder=2,
    )


def _axis(across: str, group: Sequence[Column]) -> str:
    return ", ".join(part for part in (across, group[0].group) if part)


def _name(axes: Axes, title: str, below: str, alone: bool) -> None:
    if alone:
        axes.set_xlabel(f"{title}   (filled: here, hollow: paper)")
    else:
        axes.set_ylabel(title)
        axes.set_xlabel(below)


def _legend(figure: Figure, table: AnyTable) -> None:
    handles, names = figure.axes[0].get_legend_handles_labels()
    if table.plan.paper and len(table.plan.rows) <= _FEW:
        handles.append(
            Line2D(
                [], [], color=FAINT, marker="o", markerfacecolor="none", linestyle=":"
            )
        )
        names.append("the paper's")
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 5))
