"""When did it leak? AUROC round by round as a picture."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND
from privaudit.report.figures.figure_style import (
    INK,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
)
from privaudit.report.figures.figure_values import spot, value_text
from privaudit.report.report_data import ReportData, shortened

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
            _panel(axes, audit)
            axes.set_ylabel(
                f"{shortened(label, _LONGEST)}\nAUROC" if len(panels) > 1 else "AUROC"
            )
        column[-1].set_xlabel("Round")
        column[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, names = column[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=1)
    return figure


def _panel(axes: Axes, audit: Audit) -> None:
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
