"""Every attack's AUROC with its interval, side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.report.figures.figure_style import (
    INK,
    PALE,
    colour,
    house_style,
    light_grid,
    name_rows,
    new_figure,
)
from privaudit.report.figures.figure_values import spot, value_text
from privaudit.report.labels import run_labels, shortened
from privaudit.report.tables.token_grid_table import outside_grid
from privaudit.report.wording import interval, point

Leaks = Mapping[str, AttackResult]


def attacks_plot(audits: Sequence[Audit]) -> Figure | None:
    """Draw a row for each attack with a dot for each run, the headline on top.

    The cells of MaxRényi's grid have a table of their own and are left out. None where
    there is one attack only: other pictures show it.
    """
    runs = [outside_grid(audit.results) for audit in audits]
    names = list(dict.fromkeys(name for results in runs for name in results))
    if len(names) < 2:
        return None
    several = len(audits) > 1
    with house_style():
        height = 1.0 + len(names) * max(0.42, 0.14 * len(audits)) + 0.3 * several
        figure = new_figure(7.6, height)
        axes = figure.subplots()
        for index, (label, results) in enumerate(
            zip(run_labels(audits), runs, strict=True)
        ):
            shift = (index - (len(audits) - 1) / 2) * 0.7 / len(audits)
            _dots(axes, results, names, shift, index, shortened(label))
        _rows(axes, [f"{name}\n{_counts(name, runs)}" for name in names])
        if several:
            figure.legend(loc="outside upper center", ncols=2)
    return figure


def _dots(
    axes: Axes,
    results: Leaks,
    names: Sequence[str],
    shift: float,
    index: int,
    label: str,
) -> None:
    aurocs = [leak.auroc for leak in results.values()]
    errors = [(auroc.value - auroc.low, auroc.high - auroc.value) for auroc in aurocs]
    axes.errorbar(
        np.array([auroc.value for auroc in aurocs]),
        np.array([names.index(name) + shift for name in results]),
        xerr=np.array(errors).T,
        fmt="o",
        color=colour(index),
        markersize=5.5,
        elinewidth=1.4,
        label=label,
        zorder=3,
    )
    for name, leak in results.items():
        text = value_text(f"{name}, {label}", "AUROC", leak.auroc)
        spot(axes, leak.auroc.value, names.index(name) + shift, text)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    light_grid(axes)
    axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
    axes.axhspan(-0.5, 0.5, color=PALE, zorder=0, linewidth=0)
    name_rows(axes, names)
    axes.set_xlabel("AUROC of the attack   (0.5: chance; right: leaks more)")


def _counts(name: str, runs: Sequence[Leaks]) -> str:
    """Say on how many clients and records an attack was made, if alike in all runs."""
    sizes = {
        (len(results[name].clients), results[name].auroc.n)
        for results in runs
        if name in results
    }
    if len(sizes) > 1:
        return "n differs: see the table"
    ((clients, n),) = sizes
    return f"{clients} client{'s' * (clients > 1)}, n = {n[0]} + {n[1]}"


def on_some_clients(audits: Sequence[Audit]) -> bool:
    """Return whether an attack was made on fewer clients than another was."""
    return any(
        len({len(leak.clients) for leak in audit.results.values()}) > 1
        for audit in audits
    )


def attacks_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`attacks_plot` shows, for those who do not see it."""
    parts = [
        f"{label}, {name}: {point(leak.auroc)} {interval(leak.auroc)}"
        for label, audit in zip(run_labels(audits), audits, strict=True)
        for name, leak in outside_grid(audit.results).items()
    ]
    return f"AUROC of every attack. {'; '.join(parts)}."
