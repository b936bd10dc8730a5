"""Pictures of two numbers for each run beside each other, with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    colour,
    house_style,
    light_grid,
    name_rows,
    new_figure,
)
from privaudit.report.figures.figure_values import errors, spot, value_text
from privaudit.report.labels import run_labels, shortened
from privaudit.report.tables.parts import both_models, gain_of_rebuilding
from privaudit.statistics.estimate import Estimate

Pair = tuple[Estimate, Estimate]
_MARKERS = ("o", "s")
_LONGEST = 30  # characters of a name in a picture


@dataclass(frozen=True)
class FigurePanel:
    """One picture of a row.

    Attributes:
        label: What its numbers are.
        pairs: Two numbers for each run.
        lines: Where nothing is known, or all is: drawn black.
        least: What the axis shows at least.
    """

    label: str
    pairs: Sequence[Pair]
    lines: tuple[float, ...]
    least: tuple[float, float]


def pair_plot(
    names: Sequence[str], series: tuple[str, str], panels: Sequence[FigurePanel]
) -> Figure:
    """Draw each panel's two numbers, a line for each run.

    Args:
        names: Of the runs, from top to bottom.
        series: Names of the two numbers.
        panels: From left to right.
    """
    with house_style():
        figure = new_figure(7.6, 1.5 + 0.5 * len(names))
        figure.set_layout_engine("constrained", w_pad=0.15)  # ticks of neighbours
        row: list[Axes] = list(figure.subplots(1, len(panels), squeeze=False)[0])
        for axes, panel in zip(row, panels, strict=True):
            _draw(axes, panel, names, series)
        row[0].set_yticks(
            range(len(names)), [shortened(name, _LONGEST) for name in names]
        )
        handles = row[0].get_legend_handles_labels()[0]
        figure.legend(handles[:2], series, loc="outside upper center", ncols=2)
    return figure


def _draw(
    axes: Axes, panel: FigurePanel, names: Sequence[str], series: tuple[str, str]
) -> None:
    light_grid(axes)
    for value in panel.lines:
        axes.axvline(value, color=INK, linewidth=1, zorder=1)
    for number, pair in enumerate(panel.pairs):
        for which, estimate in enumerate(pair):
            what = panel.label.partition("\n")[0].partition("   ")[0]
            text = value_text(f"{names[number]}, {series[which]}", what, estimate)
            _dot(axes, estimate, number + 0.24 * (which - 0.5), which, text)
    name_rows(axes, [""] * len(names))
    low, high = axes.get_xlim()
    margin = 0.04 * (panel.least[1] - panel.least[0])
    axes.set_xlim(min(low, panel.least[0] - margin), max(high, panel.least[1] + margin))
    axes.set_xlabel(panel.label)


def _dot(axes: Axes, estimate: Estimate, place: float, which: int, text: str) -> None:
    axes.errorbar(
        estimate.value,
        place,
        xerr=errors(estimate),
        fmt=_MARKERS[which],
        color=(colour(0), FAINT)[which],
        markerfacecolor=(colour(0), "white")[which],
        markersize=6,
        elinewidth=1.4,
        label=str(which),
        zorder=3,
    )
    spot(axes, estimate.value, place, text)


def closeness_plot(audits: Sequence[Audit]) -> Figure | None:
    """Draw how close reconstructed models are to their own clients' and to the others'.

    Runs in which no model was an estimate are left out; None if that is all.
    """
    pairs = zip(run_labels(audits), audits, strict=True)
    rows = [(label, c) for label, a in pairs if (c := a.part(CLOSENESS).closeness)]
    if not rows:
        return None
    distance = FigurePanel(
        "Relative L2 distance of the weight changes\n(0: equal; 1: as far as no change)",
        [(close.distance, close.distance_null) for _, close in rows],
        (0.0, 1.0),
        (0.0, 1.0),
    )
    agreement = FigurePanel(
        "Same most likely next token\n(1: always)",
        [(close.agreement, close.agreement_null) for _, close in rows],
        (1.0,),
        (0.8, 1.0),
    )
    names = [label for label, _ in rows]
    series = ("to the same client's true model", "to other clients' (baseline)")
    return pair_plot(names, series, [distance, agreement])


def server_plot(audits: Sequence[Audit]) -> Figure | None:
    """Draw an attack's AUROC on the clients' models and on the server's.

    Runs in which the server's model was not attacked are left out; None if that is all.
    """
    pairs = zip(run_labels(audits), audits, strict=True)
    rows = [
        (label, both)
        for label, audit in pairs
        if gain_of_rebuilding(audit) and (both := both_models(audit))
    ]
    if not rows:
        return None
    panel = FigurePanel(
        "AUROC of the attack   (0.5: chance; right: leaks more)",
        [(clients.auroc, server.auroc) for _, (clients, server) in rows],
        (0.5,),
        (0.48, 0.56),
    )
    series = ("on the clients' reconstructed models", "on the server's own model")
    return pair_plot([label for label, _ in rows], series, [panel])


def closeness_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`closeness_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: distance {close.distance}, of other clients {close.distance_null}; "
        f"agreement {close.agreement}, of other clients {close.agreement_null}"
        for label, audit in zip(run_labels(audits), audits, strict=True)
        if (close := audit.part(CLOSENESS).closeness)
    ]
    return f"Reconstruction quality. {'. '.join(parts)}."


def server_alt(audits: Sequence[Audit]) -> str:
    """Say what :func:`server_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: clients' {both[0].auroc}, server's {both[1].auroc}"
        for label, audit in zip(run_labels(audits), audits, strict=True)
        if (both := both_models(audit))
    ]
    return f"AUROC on clients' and on the server's model. {'; '.join(parts)}."
