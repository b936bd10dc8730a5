"""Epsilon as claimed, as certified and as canaries of one run show it."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.core.formatting import epsilon
from privaudit.report.figures.figure_style import (
    COLOURS,
    FAINT,
    INK,
    PALE,
    house_style,
    light_grid,
    name_rows,
    new_figure,
)
from privaudit.report.figures.figure_values import spot
from privaudit.report.report_data import ReportData, shortened

_TICKS = (0, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SHOWN = COLOURS[1]
_LONGEST = 30  # characters of a name beside a bar
_PROMISES = {"claimed": ("D", INK), "certified: at most": ("s", COLOURS[0])}


def epsilon_plot(data: ReportData) -> Figure | None:
    """Draw shown, claimed and certified epsilon and the ceiling, a bar for each run.

    Runs that did not ask for epsilon are left out; None if that is all.
    """
    rows = [(o.label, o.audit) for o in data.runs if o.audit.part(ONE_RUN)]
    if not rows:
        return None
    with house_style():
        figure = new_figure(7.6, 1.5 + 0.6 * len(rows))
        axes = figure.subplots()
        light_grid(axes)
        for place, (label, audit) in enumerate(rows):
            _bar(axes, label, audit, place)
        _epsilon_axis(axes, [audit for _, audit in rows])
        name_rows(axes, [shortened(label, _LONGEST) for label, _ in rows])
        entries = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(
            entries.values(), entries.keys(), loc="outside upper center", ncols=4
        )
    return figure


def _bar(axes: Axes, label: str, audit: Audit, place: int) -> None:
    """Draw one run: a bar to what is shown, on a paler one to the ceiling."""
    one_run = audit.part(ONE_RUN)
    assert one_run is not None
    bound = one_run.bound
    axes.barh(place, bound.ceiling, 0.5, color=PALE, label="could have been shown")
    ends = [place - 0.25, place + 0.25]
    axes.plot([bound.ceiling] * 2, ends, color=FAINT, linewidth=2, zorder=3)
    axes.barh(place, bound.value, 0.5, color=_SHOWN, label="shown: at least")
    axes.text(
        bound.ceiling,
        place + 0.3,
        f"shown {bound.value:.2f}, ceiling {bound.ceiling:.2f}",
        ha="right",
        va="top",
        fontsize=8,
        color=FAINT,
    )
    spot(axes, bound.value, place, f"{label}: shown {bound}")
    _mark(axes, audit.claimed_epsilon, place - 0.12, "claimed")
    _mark(axes, audit.certified_epsilon, place + 0.12, "certified: at most")


def _mark(axes: Axes, value: float | None, place: float, name: str) -> None:
    """Draw a promise; nothing where there is none."""
    if value is None:
        return
    marker, paint = _PROMISES[name]
    axes.plot(
        value,
        place,
        marker,
        color=paint,
        markeredgecolor="white",
        markersize=8,
        linestyle="",
        label=name,
        zorder=4,
        clip_on=False,
    )
    spot(axes, value, place, f"ε {name} {epsilon(value)}")


def _epsilon_axis(axes: Axes, audits: Sequence[Audit]) -> None:
    """Scale the axis: from 0 to 1 evenly, beyond that by ratios."""
    values = [
        value
        for audit in audits
        for value in (audit.claimed_epsilon, audit.certified_epsilon)
        if value is not None
    ]
    ceilings = [one_run.bound.ceiling for a in audits if (one_run := a.part(ONE_RUN))]
    top = 1.15 * max(values + ceilings + [1.0])
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(0, top)
    axes.xaxis.set_major_locator(FixedLocator([t for t in _TICKS if t <= top]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("ε   (linear to 1, then logarithmic)")


def epsilon_alt(data: ReportData) -> str:
    """Say what :func:`epsilon_plot` shows, for those who do not see it."""
    parts = [
        f"{one.label}: shown {one_run.bound.value:.2f}, ceiling "
        f"{one_run.bound.ceiling:.2f}, claimed {epsilon(one.audit.claimed_epsilon)}, "
        f"certified {epsilon(one.audit.certified_epsilon)}"
        for one in data.runs
        if (one_run := one.audit.part(ONE_RUN))
    ]
    return f"Epsilon from one run. {'; '.join(parts)}."
