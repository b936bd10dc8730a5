"""The pictures of a report: trade-off, ROC, leak per client."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privaudit.audit import Audit
from privaudit.leak import Leak
from privaudit.report.figure_style import (
    FAINT,
    INK,
    PALE,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
)
from privaudit.report.label_placement import label_points
from privaudit.report.labels import run_labels, shortened
from privaudit.report.wording import metric, privacy_sort, untrained, writes
from privaudit.statistics.curve import RocCurve
from privaudit.statistics.estimate import Estimate

_MARKERS = {
    "no privacy mechanism": "o",
    "adds noise for privacy": "D",
    "trains nothing": "X",
}
Ends = tuple[float, float]
_DASHES = (0, (4, 3))
_MOST = 4  # attacks of one run in a picture: more are not told apart


def tradeoff_plot(audits: Sequence[Audit]) -> Figure:
    """Draw utility against leakage, one point with both intervals for each run.

    Args:
        audits: At least one, under one scenario.
    """
    with house_style():
        figure = new_figure(7.6, 4.6)
        axes = figure.subplots()
        light_grid(axes)
        points, crosses = [], []
        for index, audit in enumerate(audits):
            leak, local = audit.auroc, audit.utility.local
            _cross(axes, leak, local, colour(index), _MARKERS[privacy_sort(audit)])
            points.append((leak.value, local.value))
            crosses.append((_ends(leak), _ends(local)))
        _tradeoff_axes(axes, audits, crosses)
        _tradeoff_legend(figure, audits)
        labels = [shortened(label) for label in run_labels(audits)]
        label_points(figure, axes, points, labels, crosses)
    return figure


def _cross(axes: Axes, x: Estimate, y: Estimate, paint: str, marker: str) -> None:
    axes.errorbar(
        x.value,
        y.value,
        xerr=_errors(x),
        yerr=_errors(y),
        fmt=marker,
        color=paint,
        markersize=8,
        markeredgecolor="white",
        markeredgewidth=0.8,
        elinewidth=1.3,
        zorder=3,
    )


def _tradeoff_axes(
    axes: Axes, audits: Sequence[Audit], crosses: Sequence[tuple[Ends, Ends]]
) -> None:
    zero_shots = sorted({audit.utility.zero_shot.value for audit in audits})
    axes.set_xlim(*_room([0.48, 0.56, *(end for x, _ in crosses for end in x)]))
    axes.set_ylim(*_room([*zero_shots, *(end for _, y in crosses for end in y)]))
    axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
    for value in zero_shots:
        axes.axhline(value, color=FAINT, linewidth=1, linestyle=_DASHES, zorder=1)
    axes.set_xlabel("Leak: AUROC of the attack   (0.5: coin toss; right: leaks more)")
    axes.set_ylabel(f"Use: {metric(audits)} on a client's\nown classes   (up: better)")


def _room(values: Sequence[float]) -> Ends:
    """Return limits with some room around the values."""
    margin = 0.07 * (max(values) - min(values)) + 0.002
    return min(values) - margin, max(values) + margin


def _tradeoff_legend(figure: Figure, audits: Sequence[Audit]) -> None:
    sorts = {privacy_sort(audit) for audit in audits}
    entries = [
        Line2D([], [], color=FAINT, marker=marker, linestyle="", label=sort)
        for sort, marker in _MARKERS.items()
        if sort in sorts
    ]
    entries += [
        Line2D([], [], color=FAINT, linestyle=_DASHES, label=untrained(audits)),
        Line2D([], [], color=INK, label="coin toss"),
    ]
    figure.legend(handles=entries, loc="outside upper center", ncols=len(entries))


def series_of(audits: Sequence[Audit]) -> list[tuple[str, Leak]]:
    """Return what is drawn as a series: runs, or one run's attacks, headline first.

    Of one run's attacks it is the first four, in the scenario's order. Where models
    write it is the headline attack, on the clients' models and on the server's.
    """
    if len(audits) == 1 and writes(audits[0]):
        return _headlines(audits[0])
    if len(audits) == 1:
        return list(audits[0].leaks.items())[:_MOST]
    labels = run_labels(audits)
    return [(label, a.headline) for label, a in zip(labels, audits, strict=True)]


def undrawn(audits: Sequence[Audit]) -> str:
    """Say which attacks of one run have no series; nothing if all have."""
    if len(audits) > 1 or writes(audits[0]) or len(audits[0].leaks) <= _MOST:
        return ""
    return (
        f"Of {len(audits[0].leaks)} attacks the first {_MOST} are drawn, here and "
        "below; the others stand in the table."
    )


def _headlines(audit: Audit) -> list[tuple[str, Leak]]:
    name, common = audit.headline.attack, audit.aggregate.get(audit.headline.attack)
    server = [(f"{name}, server's own model", common)] if common else []
    return [(f"{name}, clients' models", audit.headline), *server]


def roc_plot(audits: Sequence[Audit]) -> Figure:
    """Draw ROC curves with both axes logarithmic, where the sharp attacks show.

    One line for each run's headline attack, or for each attack of a single run, with
    pointwise bands for headline attacks. False-positive rates that the non-members
    are too few to measure are shaded.

    Source: the axes: Carlini et al., "Membership inference attacks from first
    principles", IEEE S&P 2022.

    Args:
        audits: At least one, under one scenario.
    """
    series = series_of(audits)
    with house_style():
        figure = new_figure(7.6, 4.9)
        axes = figure.subplots()
        axes.set_box_aspect(1)
        others = min(leak.roc().nonmembers for _, leak in series)
        floor = 10 ** np.floor(np.log10(1 / max(others, 10)))
        axes.set(xscale="log", yscale="log", xlim=(floor, 1.05), ylim=(floor, 1.05))
        light_grid(axes)
        _shade_unresolved(axes, 10 / others, floor)
        axes.plot([floor, 1], [floor, 1], color=INK, linewidth=1, zorder=1)
        for index, (label, leak) in enumerate(series):
            _draw_curve(axes, leak, index, shortened(label), floor)
            if index == 0 or len(audits) > 1:
                _draw_band(axes, leak.roc(), index, floor, 0.25 / len(series))
        axes.set_xlabel("False-positive rate: records not trained on that are accused")
        axes.set_ylabel("True-positive rate: records\ntrained on that are found")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        _plain_rates(axes)
    return figure


def _shade_unresolved(axes: Axes, limit: float, floor: float) -> None:
    if limit <= floor:
        return
    axes.axvspan(floor, min(limit, 1.05), color=PALE, zorder=0, linewidth=0)
    axes.text(
        np.sqrt(floor * min(limit, 1)),
        0.9,
        "unresolved: fewer than\n10 false alarms expected",
        ha="center",
        va="top",
        fontsize=8,
        color=FAINT,
    )


def _draw_curve(axes: Axes, leak: Leak, index: int, label: str, floor: float) -> None:
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


def _plain_rates(axes: Axes) -> None:
    """Write rates as per cent, not as powers of ten."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
        axis.set_minor_formatter(lambda rate, _: "")


def client_plot(audits: Sequence[Audit]) -> Figure:
    """Draw each client's AUROC with its interval, and below them the average.

    Args:
        audits: At least one, under one scenario.
    """
    series = series_of(audits)
    clients = list(dict.fromkeys(c for _, leak in series for c in leak.by_client))
    rows = [*clients, "average"]
    step = 0.7 / len(series)
    with house_style():
        height = 1.3 + len(rows) * max(0.38, 0.15 * len(series))
        figure = new_figure(7.6, height)
        axes = figure.subplots()
        light_grid(axes)
        axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
        axes.axhspan(len(clients) - 0.5, len(clients) + 0.5, color=PALE, zorder=0)
        for index, (label, leak) in enumerate(series):
            shift = (index - (len(series) - 1) / 2) * step
            _dots(axes, leak, rows, shift, index, shortened(label))
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("AUROC of the attack within a client's records")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _dots(
    axes: Axes, leak: Leak, rows: Sequence[str], shift: float, index: int, label: str
) -> None:
    found = {**leak.by_client, "average": leak.auroc}
    for number, row in enumerate(rows):
        if row not in found:
            continue
        axes.errorbar(
            found[row].value,
            number + shift,
            xerr=_errors(found[row]),
            fmt="s" if row == "average" else "o",
            color=colour(index),
            markersize=6 if row == "average" else 5,
            elinewidth=1.8 if row == "average" else 1.2,
            label=label if number == len(rows) - 1 else None,
            zorder=3,
        )


def _ends(estimate: Estimate) -> Ends:
    if estimate.unresolved:
        return estimate.value, estimate.value
    return estimate.low, estimate.high


def _errors(estimate: Estimate) -> Float[np.ndarray, "2 1"]:
    low, high = _ends(estimate)
    return np.array([[estimate.value - low], [high - estimate.value]])
