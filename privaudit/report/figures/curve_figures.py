"""Curves: ROC with both axes logarithmic, and AUROC round by round.

Where n is too small to read a ROC curve, it is shaded.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from privaudit.auditing.attack_result import AttackResult, ranked
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND
from privaudit.report.figures.figure_style import (
    GREY,
    INK,
    PALE,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
    spot,
    value_text,
)
from privaudit.report.report_data import ReportData, shortened
from privaudit.statistics.roc import RocCurve, tpr_at_fpr, uneven

Series = Sequence[tuple[str, AttackResult]]
_MARKED_FPRS = (0.001, 0.01, 0.1, 0.2, 0.5)
_LONGEST_OF_CURVES = 30  # characters of a name beside the curves


def roc_plot(data: ReportData) -> Figure:
    """Draw ROC curves with both axes logarithmic, where the sharp attacks show.

    One line for each run's headline attack, or for each attack of a single run, with
    pointwise bands for headline attacks. False-positive rates that the non-members
    are too few to measure are shaded, and so are rates of less than one record.

    Source: the axes: Carlini et al., "Membership inference attacks from first
    principles", IEEE S&P 2022.
    """
    with house_style():
        figure = new_figure(7.6, 4.6)
        axes, series = figure.subplots(), data.series
        members, others = _fewest(series)
        axes.set_box_aspect(1)
        floor = 10 ** np.floor(np.log10(1 / max(others, 10)))
        axes.set(xscale="log", yscale="log", xlim=(floor, 1.05), ylim=(floor, 1.05))
        light_grid(axes)
        shades = _shade_unresolved(axes, members, others, floor)
        (chance,) = axes.plot(
            [floor, 1], [floor, 1], color=INK, linewidth=1, zorder=1, label="chance"
        )
        for index, (label, result) in enumerate(series):
            _draw_curve(
                axes, result, index, shortened(label, _LONGEST_OF_CURVES), floor
            )
            if index == 0 or len(data.runs) > 1:
                _draw_band(axes, result.roc(), index, floor, 0.25 / len(series))
        _label_axes(axes)
        curves = axes.get_legend_handles_labels()[0][1:]
        axes.legend(
            handles=[*curves, chance, *shades], loc="upper left", bbox_to_anchor=(1, 1)
        )
    return figure


def _fewest(series: Series) -> tuple[int, int]:
    """Return the fewest members and the fewest non-members of any curve."""
    curves = [result.roc() for _, result in series]
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
    axes: Axes, result: AttackResult, index: int, label: str, floor: float
) -> None:
    curve = result.roc()
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
    members, others = ranked(result.clients)
    sizes = [len(client.scores) for client in result.clients]
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
        for label, result in data.series
        for fpr, tpr in result.tpr_at_fpr.items()
    ]
    return f"ROC curves with logarithmic axes. {'; '.join(parts)}."


_LONGEST = 26  # characters of a name beside a panel
_MARKERS = ("o", "s", "^", "D")


def rounds_plot(data: ReportData) -> Figure | None:
    """Draw each attack's AUROC round by round with its intervals, a panel a run.

    Runs without rounds are left out; None if that is all.
    """
    panels = [(o.label, o.audit) for o in data.runs if o.audit.part(LEAKAGE_BY_ROUND)]
    if not panels:
        return None
    with house_style():
        figure = new_figure(7.6, 0.9 + 2.6 * len(panels))
        column: list[Axes] = list(
            figure.subplots(len(panels), 1, squeeze=False, sharex=True, sharey=True)[
                :, 0
            ]
        )
        for axes, (label, audit) in zip(column, panels, strict=True):
            _round_panel(axes, audit)
            axes.set_ylabel(
                f"{shortened(label, _LONGEST)}\nAUROC" if len(panels) > 1 else "AUROC"
            )
        column[-1].set_xlabel("Round")
        column[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, names = column[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=1)
    return figure


def _round_panel(axes: Axes, audit: Audit) -> None:
    light_grid(axes)
    axes.axhline(0.5, color=INK, linewidth=1, zorder=1)
    for index, leakage in enumerate(audit.part(LEAKAGE_BY_ROUND)):
        rounds = sorted(leakage.by_round)
        aurocs = [leakage.by_round[number] for number in rounds]
        axes.fill_between(
            rounds,
            np.array([estimate.low for estimate in aurocs]),
            np.array([estimate.high for estimate in aurocs]),
            color=colour(index),
            alpha=0.16,
            linewidth=0,
            zorder=2,
        )
        axes.plot(
            rounds,
            [estimate.value for estimate in aurocs],
            color=colour(index),
            linestyle=line_style(index),
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4,
            linewidth=1.6,
            label=f"{leakage.attack}: {leakage.meaning}",
            zorder=3,
        )
        for number, estimate in zip(rounds, aurocs, strict=True):
            text = value_text(f"{leakage.attack}, round {number}", "AUROC", estimate)
            spot(axes, number, estimate.value, text)


def rounds_alt(data: ReportData) -> str:
    """Say what :func:`rounds_plot` shows, for those who do not see it."""
    parts = []
    for one in data.runs:
        for leakage in one.audit.part(LEAKAGE_BY_ROUND):
            if not leakage.by_round:
                continue
            first, last = min(leakage.by_round), max(leakage.by_round)
            parts.append(
                f"{one.label}, {leakage.attack}: {leakage.by_round[first]} in round "
                f"{first}, {leakage.by_round[last]} in round {last}"
            )
    return f"AUROC by round with intervals. {'; '.join(parts)}."
