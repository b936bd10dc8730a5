"""The picture of a trade-off: leak against use, each cell with both intervals."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privaudit.core.formatting import epsilon
from privaudit.evaluation.tradeoff.cells import SweepCell
from privaudit.evaluation.tradeoff.result import Tradeoff
from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    colour,
    house_style,
    light_grid,
    new_figure,
)
from privaudit.report.figures.figure_values import ends, errors, spot, value_text
from privaudit.report.figures.label_placement import label_points
from privaudit.report.report_data import shortened

_MARKERS = "osD^v"
_DASHES = (0, (1, 2))


def tradeoff_plane(found: Tradeoff) -> Figure:
    """Draw every cell by its AUROC and its utility, means over seeds with intervals.

    What another cell dominates by test is hollow. The dotted line is the front of the
    means alone, for the eye: a cell below it need not be worse.
    """
    cells, first = found.cells, found.points[0]
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    with house_style():
        rows = -(-len(modes) // 2)
        figure = new_figure(7.6, 4.6 + 0.18 * rows)
        axes = figure.subplots()
        light_grid(axes)
        stay = set(found.front.not_dominated)
        for place, cell in enumerate(cells):
            _cross(axes, cell, modes.index(cell.mode), place in stay)
        axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
        _staircase(axes, cells)
        axes.margins(x=0.08, y=0.14)  # labels stand around the marks
        _name_axes(axes, found)
        figure.legend(
            handles=_legend(modes), loc="outside upper center", ncols=2, fontsize=8
        )
        _label(figure, axes, cells)
        for cell in cells:
            spot(
                axes, cell.auroc.value, cell.local.value, cell_text(cell, first.metric)
            )
    return figure


def cell_text(cell: SweepCell, metric: str) -> str:
    """Return what a cell's point says."""
    return f"{value_text(cell.name, 'AUROC', cell.auroc)} seeds; {metric} {cell.local}"


def plane_alt(found: Tradeoff) -> str:
    """Say what :func:`tradeoff_plane` shows, for those who do not see it."""
    metric = found.points[0].metric
    parts = [
        f"{cell_text(cell, metric)}; {found.standing(place)}"
        for place, cell in enumerate(found.cells)
    ]
    return f"Utility against leakage of each cell. {'. '.join(parts)}."


def _cross(axes: Axes, cell: SweepCell, mode: int, stays: bool) -> None:
    x, y = cell.auroc, cell.local
    axes.errorbar(
        x.value,
        y.value,
        xerr=errors(x),
        yerr=errors(y),
        fmt=_MARKERS[mode % len(_MARKERS)],
        color=colour(mode),
        markersize=7.5,
        markerfacecolor=colour(mode) if stays else "white",
        elinewidth=1.2 if stays else 0.7,
        alpha=1.0 if stays else 0.75,
        zorder=4 if stays else 3,
    )


def _staircase(axes: Axes, cells: Sequence[SweepCell]) -> None:
    """Draw the front of the means: use that is had with at most so much leak."""
    best: list[tuple[float, float]] = []
    for cell in sorted(cells, key=lambda c: (c.auroc.value, -c.local.value)):
        if not best or cell.local.value > best[-1][1]:
            best.append((cell.auroc.value, cell.local.value))
    x, y = zip(*best, strict=True)
    axes.step(x, y, where="post", color=FAINT, linewidth=1, linestyle=_DASHES, zorder=2)


def _name_axes(axes: Axes, found: Tradeoff) -> None:
    first = found.points[0]
    attack = f" of {first.attack}" if first.attack else ""
    axes.set_xlabel(f"Leakage: AUROC{attack}   (0.5: chance; right: leaks more)")
    axes.set_ylabel(
        f"Utility: {first.metric} on a client's\nown classes   (up: better)"
    )


def _legend(modes: Sequence[str]) -> list[Line2D]:
    handles = [
        Line2D(
            [], [], color=colour(index), marker=_MARKERS[index % len(_MARKERS)],
            linestyle="", markersize=7, label=shortened(mode),
        )
        for index, mode in enumerate(modes)
    ]  # fmt: skip
    hollow = Line2D(
        [], [], color=FAINT, marker="o", markerfacecolor="white", linestyle="",
        label="hollow: dominated by another, by test",
    )  # fmt: skip
    line = Line2D(
        [], [], color=FAINT, linestyle=_DASHES, label="front of the means, no test"
    )
    return [*handles, hollow, line]


def _label(figure: Figure, axes: Axes, cells: Sequence[SweepCell]) -> None:
    """Write epsilons beside the cells of modes that have several."""
    modes = [cell.mode for cell in cells]
    labelled = [c for c in cells if c.epsilon is not None or modes.count(c.mode) > 1]
    if not labelled:
        return
    points = [(cell.auroc.value, cell.local.value) for cell in labelled]
    labels = [
        "no ε" if c.epsilon is None else f"ε {epsilon(c.epsilon)}" for c in labelled
    ]
    crosses = [(ends(cell.auroc), ends(cell.local)) for cell in labelled]
    label_points(figure, axes, points, labels, crosses)
    shown = list(dict.fromkeys(modes))
    for text, cell in zip(axes.texts, labelled, strict=True):
        text.set_color(colour(shown.index(cell.mode)))
