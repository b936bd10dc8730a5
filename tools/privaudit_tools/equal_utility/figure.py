"""The plane of a benchmark: leak over utility, the curve and each method on it."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privaudit.report.figures.figure_style import (
    FAINT,
    colour,
    errors,
    house_style,
    light_grid,
    new_figure,
)
from privaudit_tools.equal_utility.judging import Judged, Row

_MARKERS = "osD^vPX"


def plane(judged: Judged, measured: str = "accuracy on own classes") -> Figure:
    """Draw means over evaluation seeds, with 95 % intervals of leaks.

    Below the curve is less leak at equal utility. Hollow marks are not tested: worth no
    more than no training, for all that is shown.
    """
    with house_style():
        figure = new_figure(7.2, 4.4)
        axes = figure.subplots()
        _draw_curve(axes, judged)
        for index, row in enumerate(judged.rows):
            if row.standing is not None:
                _draw_row(axes, row, index)
        axes.set_xlabel(measured)
        axes.set_ylabel("AUROC of the strongest attack")
        light_grid(axes)
        figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _draw_curve(axes: Axes, judged: Judged) -> None:
    axes.plot(
        [knot.utility.value for knot in judged.knots],
        [knot.leak.value for knot in judged.knots],
        ".-",
        color=FAINT,
        linewidth=1.6,
        label="stopped early",
        zorder=2,
    )


def _draw_row(axes: Axes, row: Row, index: int) -> None:
    axes.errorbar(
        row.utility.value,
        row.leak.value,
        yerr=errors(row.leak),
        fmt=_MARKERS[index % len(_MARKERS)],
        color=colour(index),
        markerfacecolor=colour(index) if row.is_tested else "none",
        markersize=6,
        elinewidth=1.0,
        capsize=2,
        label=row.method.label,
        zorder=3,
    )
