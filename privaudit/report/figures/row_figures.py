"""A row of dots for each client, class or property; a column for each number of attacks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.record_exposure import RECORD_EXPOSURE
from privaudit.auditing.per_record.shared_exposure import SharedExposure
from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    PALE,
    colour,
    house_style,
    light_grid,
    name_rows,
    new_figure,
)
from privaudit.report.figures.figure_values import errors, spot, value_text
from privaudit.report.figures.figures import series_of
from privaudit.report.labels import run_labels, shortened
from privaudit.report.tables.leak_by_class import ClassLeak
from privaudit.report.tables.record_table import tested_properties
from privaudit.statistics.estimate import Estimate

AVERAGE = "average"
MOST_CLASSES = 24  # in a picture; the table holds all
MOST_CLIENTS = 40  # in a picture; audit.json holds all
Rows = Mapping[str, Estimate]
_WITHIN = "AUROC of the attack within a {}'s records"
Classes = Sequence[Sequence[ClassLeak]]


def client_plot(audits: Sequence[Audit]) -> Figure:
    """Draw each client's AUROC with its interval, and below them the average.

    Of many clients those with the most pairs are drawn, whatever their scores are.

    Args:
        audits: At least one, under one scenario.
    """
    series: list[tuple[str, Rows]] = [
        (label, {**_most_pairs(leak.by_client), AVERAGE: leak.auroc})
        for label, leak in series_of(audits)
    ]
    clients = dict.fromkeys(c for _, rows in series for c in rows if c != AVERAGE)
    rows = [*clients, AVERAGE]
    return row_plot(series, rows, _WITHIN.format("client"), shaded=len(rows) - 1)


def _most_pairs(clients: Rows) -> Rows:
    """Return the clients with the most pairs of a member and another, in their order."""
    largest = sorted(clients, key=lambda name: -math.prod(clients[name].n))
    kept = set(largest[:MOST_CLIENTS])
    return {name: one for name, one in clients.items() if name in kept}


def class_plot(audits: Sequence[Audit], classes: Classes) -> Figure | None:
    """Draw each class's AUROC with its interval; None where no class has enough.

    A class without enough records has a row and no dot. Of many classes those with the
    most records are drawn, whatever their scores are.

    Args:
        audits: At least one, under one scenario.
        classes: Of each audit.
    """
    rows = _largest([one for leaks in classes for one in leaks])
    series: list[tuple[str, Rows]] = [
        (label, {one.name: one.auroc for one in leaks if one.auroc is not None})
        for label, leaks in zip(run_labels(audits), classes, strict=True)
    ]
    if not any(set(drawn) & set(rows) for _, drawn in series):
        return None
    return row_plot(series, rows, _WITHIN.format("class"))


def property_plot(audits: Sequence[Audit]) -> Figure | None:
    """Draw what goes with exposure; None where no audit has tested anything.

    Of many classes those with the most records are drawn, whatever they show.

    Args:
        audits: At least one, under one scenario.
    """
    found = tested_properties(audits)
    sizes: dict[str, int] = {}
    for name, one in ((n, e) for _, rows in found for n, e in rows.items()):
        sizes[name] = max(sizes.get(name, 0), min(one.n))
    if not sizes:
        return None
    kept = sorted(sizes, key=lambda name: -sizes[name])[:MOST_CLASSES]
    rows = [name for name in sizes if name in kept]
    return row_plot(found, rows, "Chance that a record with it is the more exposed")


def _largest(classes: Sequence[ClassLeak]) -> list[str]:
    """Return the names of the classes with the most records, in their order."""
    sizes: dict[str, int] = {}
    for one in classes:
        sizes[one.name] = max(sizes.get(one.name, 0), min(one.n))
    largest = sorted(sizes, key=lambda name: -sizes[name])[:MOST_CLASSES]
    return [name for name in sizes if name in largest]


def row_plot(
    series: Sequence[tuple[str, Rows]],
    rows: Sequence[str],
    what: str,
    *,
    names: Sequence[str] = (),
    shaded: int | None = None,
    is_named: bool = True,
) -> Figure:
    """Draw rows of AUROCs.

    Args:
        series: Of each run, by row.
        rows: From top to bottom.
        what: Written below.
        names: Of two lines each, in place of the rows' own.
        shaded: The place of the row that matters most.
        is_named: Whether a legend says which run a colour is.
    """
    step, high = 0.7 / len(series), 0.42 if names else 0.32
    with house_style():
        height = 1.0 + 0.3 * is_named + len(rows) * max(high, 0.15 * len(series))
        figure = new_figure(7.6, height)
        axes = figure.subplots()
        light_grid(axes)
        axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
        if shaded is not None:
            axes.axhspan(shaded - 0.5, shaded + 0.5, color=PALE, zorder=0, linewidth=0)
        for index, (label, aurocs) in enumerate(series):
            shift = (index - (len(series) - 1) / 2) * step
            _dots(axes, aurocs, rows, shift, index, shortened(label))
        _mark_unresolved(axes, series, rows)
        name_rows(axes, names or [shortened(row, 24) for row in rows])
        axes.set_xlabel(what)
        if is_named:
            figure.legend(loc="outside upper center", ncols=min(len(series), 2))
    return figure


def _dots(
    axes: Axes, found: Rows, rows: Sequence[str], shift: float, index: int, label: str
) -> None:
    places = [(place, row) for place, row in enumerate(rows) if row in found]
    for average in sorted({row == AVERAGE for row in rows}):
        drawn = [(place, row) for place, row in places if (row == AVERAGE) == average]
        axes.errorbar(
            [found[row].value for _, row in drawn],
            [place + shift for place, _ in drawn],
            xerr=np.hstack(
                [np.empty((2, 0)), *(errors(found[row]) for _, row in drawn)]
            ),
            fmt="s" if average else "o",
            color=colour(index),
            markersize=6 if average else 5,
            elinewidth=1.8 if average else 1.2,
            zorder=3,
        )
    for place, row in places:
        text = value_text(f"{row}, {label}", "AUROC", found[row])
        spot(axes, found[row].value, place + shift, text)
    axes.plot([], [], "o", color=colour(index), label=label)


def _mark_unresolved(
    axes: Axes, series: Sequence[tuple[str, Rows]], rows: Sequence[str]
) -> None:
    """Write of rows without any dot that nothing can be said."""
    for number, row in enumerate(rows):
        if not any(row in aurocs for _, aurocs in series):
            axes.text(
                0.5,
                number,
                " unresolved: too few records",
                va="center",
                fontsize=8,
                color=FAINT,
            )


def clients_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`client_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: "
        + ", ".join(f"{c} {e}" for c, e in _most_pairs(leak.by_client).items())
        for label, leak in series_of(audits)
    ]
    return f"AUROC of the attack for each client. {'; '.join(parts)}."


def classes_alt(audits: Sequence[Audit], classes: Classes) -> str:
    """Say what :func:`class_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: "
        + ", ".join(f"{one.name} {one.auroc}" for one in leaks if one.auroc)
        for label, leaks in zip(run_labels(audits), classes, strict=True)
    ]
    return f"AUROC of the attack for each class. {'; '.join(parts)}."


def properties_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`property_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: " + ", ".join(f"{name} {one}" for name, one in rows.items())
        for label, rows in tested_properties(audits)
    ]
    return f"What goes with exposure, by property. {'; '.join(parts)}."


def exposure_plot(audits: Sequence[Audit]) -> Figure | None:
    """Draw the shares of members and others that at least so many attacks point at.

    Args:
        audits: Those without the part are left out; None if that is all.
    """
    found = _found(audits)
    if not found:
        return None
    with house_style():
        figure = new_figure(7.6, 3.4 + 0.09 * len(found))
        axes = figure.subplots()
        light_grid(axes)
        step = 0.6 / (2 * len(found))
        for index, (label, shared) in enumerate(found):
            for side, style in (("members", "o"), ("others", "x")):
                place = 2 * index + (side == "others")
                shift = (place - len(found) + 0.5) * step
                name = f"{label}, {side}" if len(found) > 1 else side
                paint = colour(index if len(found) > 1 else place)
                shares = [getattr(level, side) for level in shared.levels]
                across = [level.attacks + shift for level in shared.levels]
                axes.errorbar(
                    across,
                    [share.value for share in shares],
                    yerr=np.hstack([errors(share) for share in shares]),
                    fmt=style,
                    color=paint,
                    markersize=5,
                    elinewidth=1.2,
                )
                for level, at, share in zip(shared.levels, across, shares, strict=True):
                    text = value_text(
                        f"{name}, {level.attacks} or more", "share", share
                    )
                    spot(axes, at, share.value, text)
                if len(found) == 1:
                    axes.plot([], [], style, color=paint, label=side)
            if len(found) > 1:
                axes.plot([], [], "o", color=colour(index), label=shortened(label))
        if len(found) > 1:  # a colour is a run, a mark says who
            axes.plot([], [], "o", color=FAINT, label="members")
            axes.plot([], [], "x", color=FAINT, label="others")
        _chance(axes, found[0][1])
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("At least so many attacks point at the record")
        axes.set_ylabel("Share of records")
        columns = 2 if len(found) > 1 else 3
        figure.legend(loc="outside upper center", ncols=columns)
    return figure


def _chance(axes: Axes, shared: SharedExposure) -> None:
    axes.plot(
        [level.attacks for level in shared.levels],
        [level.independent for level in shared.levels],
        color=FAINT,
        linewidth=1,
        linestyle=":",
        label="independent attacks that know nothing",
    )


def _found(audits: Sequence[Audit]) -> list[tuple[str, SharedExposure]]:
    pairs = zip(run_labels(audits), audits, strict=True)
    parts = [(label, audit.part(RECORD_EXPOSURE)) for label, audit in pairs]
    return [(label, part.shared) for label, part in parts if part is not None]


def exposure_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`exposure_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: "
        + ", ".join(
            f"{level.attacks} or more: members {level.members}, others {level.others}"
            for level in shared.levels
        )
        for label, shared in _found(audits)
    ]
    return f"Shares of records that several attacks point at. {'; '.join(parts)}."
