"""A row of dots for each client, or each class: whose records leak?"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privaudit.auditing.audit import Audit
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
from privaudit.report.figures.figure_values import errors, spot, told
from privaudit.report.figures.figures import series_of
from privaudit.report.labels import run_labels, shortened
from privaudit.report.tables.leak_by_class import ClassLeak
from privaudit.statistics.estimate import Estimate

AVERAGE = "average"
MOST_CLASSES = 24  # in a picture; the table holds all
MOST_CLIENTS = 40  # in a picture; audit.json holds all
Rows = Mapping[str, Estimate]
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
    return _row_plot(series, [*clients, AVERAGE], "client")


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
    return _row_plot(series, rows, "class")


def _largest(classes: Sequence[ClassLeak]) -> list[str]:
    """Return the names of the classes with the most records, in their order."""
    sizes: dict[str, int] = {}
    for one in classes:
        sizes[one.name] = max(sizes.get(one.name, 0), min(one.n))
    largest = sorted(sizes, key=lambda name: -sizes[name])[:MOST_CLASSES]
    return [name for name in sizes if name in largest]


def _row_plot(
    series: Sequence[tuple[str, Rows]], rows: Sequence[str], what: str
) -> Figure:
    step = 0.7 / len(series)
    with house_style():
        height = 1.3 + len(rows) * max(0.32, 0.15 * len(series))
        figure = new_figure(7.6, height)
        axes = figure.subplots()
        light_grid(axes)
        axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
        if rows[-1] == AVERAGE:
            axes.axhspan(len(rows) - 1.5, len(rows) - 0.5, color=PALE, zorder=0)
        for index, (label, aurocs) in enumerate(series):
            shift = (index - (len(series) - 1) / 2) * step
            _dots(axes, aurocs, rows, shift, index, shortened(label))
        _mark_unresolved(axes, series, rows)
        name_rows(axes, [shortened(row, 24) for row in rows])
        axes.set_xlabel(f"AUROC of the attack within a {what}'s records")
        figure.legend(loc="outside upper center", ncols=min(len(series), 2))
    return figure


def _dots(
    axes: Axes, found: Rows, rows: Sequence[str], shift: float, index: int, label: str
) -> None:
    for number, row in enumerate(rows):
        if row not in found:
            continue
        axes.errorbar(
            found[row].value,
            number + shift,
            xerr=errors(found[row]),
            fmt="s" if row == AVERAGE else "o",
            color=colour(index),
            markersize=6 if row == AVERAGE else 5,
            elinewidth=1.8 if row == AVERAGE else 1.2,
            zorder=3,
        )
        text = told(f"{row}, {label}", "AUROC", found[row])
        spot(axes, found[row].value, number + shift, text)
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
