"""ROC curves with both axes logarithmic, and where n is too small to read them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from privaudit.auditing.attack_result import AttackResult, ranked
from privaudit.report.figures.figure_style import (
    GREY,
    INK,
    PALE,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
)
from privaudit.report.figures.figure_values import spot, value_text
from privaudit.report.report_data import ReportData, shortened
from privaudit.statistics.curve import RocCurve, tpr_at_fpr, uneven

Series = Sequence[tuple[str, AttackResult]]
_MARKED_FPRS = (0.001, 0.01, 0.1, 0.2, 0.5)
_LONGEST = 30  # characters of a name beside the curves


def roc_plot(data: ReportData) -> Figure:
    """Draw ROC curves with both axes logarithmic, where the sharp attacks show.

    One line for each run's headline attack, or for each attack of a single run, with
    pointwise bands for headline attacks. False-positive rates that the non-members
    are too few to measure are shaded, and so are rates of less than one record.

    Source: the axes: Carlini et al., "Membership inference attacks from first
    principles", IEEE S&P 2022.
    """
    series = data.series
    members, others = _fewest(series)
    with house_style():
        figure = new_figure(7.6, 4.6)
        axes = figure.subplots()
        axes.set_box_aspect(1)
        floor = 10 ** np.floor(np.log10(1 / max(others, 10)))
        axes.set(xscale="log", yscale="log", xlim=(floor, 1.05), ylim=(floor, 1.05))
        light_grid(axes)
        shades = _shade_unresolved(axes, members, others, floor)
        (chance,) = axes.plot(
            [floor, 1], [floor, 1], color=INK, linewidth=1, zorder=1, label="chance"
        )
        for index, (label, leak) in enumerate(series):
            _draw_curve(axes, leak, index, shortened(label, _LONGEST), floor)
            if index == 0 or len(data.runs) > 1:
                _draw_band(axes, leak.roc(), index, floor, 0.25 / len(series))
        _label_axes(axes)
        curves = axes.get_legend_handles_labels()[0][1:]
        axes.legend(
            handles=[*curves, chance, *shades], loc="upper left", bbox_to_anchor=(1, 1)
        )
    return figure


def _fewest(series: Series) -> tuple[int, int]:
    """Return the fewest members and the fewest non-members of any curve."""
    curves = [leak.roc() for _, leak in series]
    members = min(curve.members for curve in curves)
    return members, min(curve.nonmembers for curve in curves)


def _shade_unresolved(
    axes: Axes, members: int, others: int, floor: float
) -> list[Patch]:
    """Grey what cannot be read, and return what to write of it.

    Pale: so few false alarms that their rate is unresolved. Darker: less than one
    record, so that no curve can have a step there.
    """
    limit, shades = min(10 / others, 1.05), []
    if limit > floor:
        axes.axvspan(floor, limit, color=PALE, zorder=0, linewidth=0)
        reason = "unresolved: fewer than\n10 false alarms expected"
        shades.append(Patch(color=PALE, label=reason))
    for shade, rate in ((axes.axvspan, 1 / others), (axes.axhspan, 1 / members)):
        if rate > floor:
            shade(floor, min(rate, 1.05), color=GREY, zorder=0.1, linewidth=0)
    least = f"less than 1 of {others} non-members,\nor than 1 of {members} members"
    shades.append(Patch(color=GREY, label=least))
    return shades


def _draw_curve(
    axes: Axes, leak: AttackResult, index: int, label: str, floor: float
) -> None:
    curve = leak.roc()
    axes.plot(
        _shown(curve.fpr, floor),
        _shown(curve.tpr, floor),
        drawstyle="steps-post",
        color=colour(index),
        linestyle=line_style(index),
        linewidth=1.8,
        label=label,
        zorder=3,
    )
    members, others = ranked(leak.clients)
    sizes = [len(client.scores) for client in leak.clients]
    for fpr in _MARKED_FPRS:
        tpr = tpr_at_fpr(members, others, fpr)
        if not tpr.unresolved and not uneven(sizes, fpr):
            height = max(tpr.value, floor)
            spot(axes, fpr, height, value_text(label, f"TPR at FPR {fpr:g}", tpr))


def _draw_band(
    axes: Axes, curve: RocCurve, index: int, floor: float, alpha: float
) -> None:
    low, high = curve.band()
    axes.fill_between(
        _shown(curve.fpr, floor),
        _shown(low, floor),
        _shown(high, floor),
        step="post",
        color=colour(index),
        alpha=alpha,
        linewidth=0,
        zorder=2,
    )


def _shown(
    rates: Float[np.ndarray, " points"], floor: float
) -> Float[np.ndarray, " points"]:
    return np.maximum(rates, floor / 10)  # a logarithm has no zero


def _label_axes(axes: Axes) -> None:
    """Name the axes, and write rates as per cent, not as powers of ten."""
    axes.set_xlabel("False-positive rate: non-members falsely accused")
    axes.set_ylabel("True-positive rate:\nmembers detected")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
        axis.set_minor_formatter(lambda rate, _: "")


def roc_alt(data: ReportData) -> str:
    """Say what :func:`roc_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: TPR {tpr} at FPR {fpr:g}"
        for label, leak in data.series
        for fpr, tpr in leak.tpr_at_fpr.items()
    ]
    return f"ROC curves with logarithmic axes. {'; '.join(parts)}."
