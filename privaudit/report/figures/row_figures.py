"""Rows of numbers with intervals: clients, classes, properties, attacks, pairs, epsilons.

Also a column for each number of attacks that point at a record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from privaudit.auditing.attack_result import AttackResult
from privaudit.auditing.audit import Audit
from privaudit.auditing.parts.closeness import CLOSENESS
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.auditing.parts.record_exposure import RECORD_EXPOSURE, SharedExposure
from privaudit.core.formatting import epsilon
from privaudit.report.figures.figure_style import (
    COLOURS,
    FAINT,
    INK,
    PALE,
    colour,
    errors,
    house_style,
    light_grid,
    name_rows,
    new_figure,
    spot,
    value_text,
)
from privaudit.report.report_data import MOST_CLASSES, ReportData, shortened
from privaudit.report.tables.attack_tables import outside_grid
from privaudit.report.tables.parts import tested_properties
from privaudit.report.wording import interval, point
from privaudit.statistics.estimate import Estimate

AVERAGE = "average"
MOST_CLIENTS = 40  # in a picture; audit.json holds all
Rows = Mapping[str, Estimate]
Series = Sequence[tuple[str, Rows]]
_WITHIN = "AUROC of the attack within a {}'s records"
_LEAKS_MORE = "AUROC of the attack   (0.5: chance; right: leaks more)"


@dataclass(frozen=True)
class RowPanel:
    """One picture of rows.

    Attributes:
        label: What its numbers are, written below.
        series: Names with estimates by row: of runs, or the two of a pair.
        lines: Where nothing is known, or all is: drawn black.
        least: What the axis shows at least; None: as much as is drawn.
        measure: What a number is that is pointed at.
    """

    label: str
    series: Series
    lines: tuple[float, ...] = (0.5,)
    least: tuple[float, float] | None = None
    measure: str = "AUROC"


def row_plot(
    panels: Sequence[RowPanel],
    rows: Sequence[str],
    *,
    names: Sequence[str] = (),
    shaded: int | None = None,
    is_named: bool = True,
    is_pair: bool = False,
) -> Figure:
    """Draw rows of numbers with their intervals, a dot for each series.

    Args:
        panels: From left to right, of the same series.
        rows: From top to bottom.
        names: Of two lines each, in place of the rows' own.
        shaded: The place of the row that matters most.
        is_named: Whether a legend says which series a colour is.
        is_pair: Whether the second series is what the first is compared with: hollow.
    """
    count = len(panels[0].series)
    step = 0.24 if is_pair else 0.7 / count
    each = 0.5 if is_pair else max(0.42 if names else 0.32, 0.15 * count)
    with house_style():
        height = 1.5 if is_pair else 1.0 + 0.3 * is_named
        figure = new_figure(7.6, height + len(rows) * each)
        if is_pair:
            figure.set_layout_engine("constrained", w_pad=0.15)  # ticks of neighbours
        shown = list(names or [shortened(row, 30 if is_pair else 24) for row in rows])
        drawn: list[Axes] = list(figure.subplots(1, len(panels), squeeze=False)[0])
        for axes, panel in zip(drawn, panels, strict=True):
            if shaded is not None:
                low, high = shaded - 0.5, shaded + 0.5
                axes.axhspan(low, high, color=PALE, zorder=0, linewidth=0)
            for index in range(count):
                shift = (index - (count - 1) / 2) * step
                _dots(axes, panel, rows, shift, index, is_pair=is_pair)
            _finish_panel(axes, panel, rows)
            name_rows(axes, shown if axes is drawn[0] else [""] * len(rows))
        if is_named:
            figure.legend(
                *drawn[0].get_legend_handles_labels(),
                loc="outside upper center",
                ncols=min(count, 2),
            )
    return figure


def _dots(
    axes: Axes,
    panel: RowPanel,
    rows: Sequence[str],
    shift: float,
    index: int,
    *,
    is_pair: bool,
) -> None:
    """Draw a series: averages stand out, and so does the first of a pair."""
    name, found = panel.series[index]
    drawn_rows = [(height, row) for height, row in enumerate(rows) if row in found]
    label, paint = shortened(name), colour(index)
    if is_pair:
        label, paint = name, (colour(0), FAINT)[index]
    for average in sorted({row == AVERAGE for row in rows}):
        drawn = [
            (height, row) for height, row in drawn_rows if (row == AVERAGE) == average
        ]
        bars = [np.empty((2, 0)), *(errors(found[row]) for _, row in drawn)]
        axes.errorbar(
            [found[row].value for _, row in drawn],
            [height + shift for height, _ in drawn],
            xerr=np.hstack(bars),
            fmt="s" if average or (is_pair and index) else "o",
            color=paint,
            markerfacecolor="white" if is_pair and index else paint,
            markersize=6 if average or is_pair else 5,
            elinewidth=1.4 if is_pair else 1.8 if average else 1.2,
            label=label if is_pair else None,
            zorder=3,
        )
    for height, row in drawn_rows:
        what = f"{row}, {label}"
        text = value_text(what, panel.measure, found[row])
        spot(axes, found[row].value, height + shift, text)
    if not is_pair:
        axes.plot([], [], "o", color=paint, label=label)


def _finish_panel(axes: Axes, panel: RowPanel, rows: Sequence[str]) -> None:
    """Draw lines and limits, and write of rows without a dot that nothing can be said."""
    light_grid(axes)
    for value in panel.lines:
        axes.axvline(value, color=INK, linewidth=1, zorder=1)
    if panel.least is not None:
        (least, most), (low, high) = panel.least, axes.get_xlim()
        margin = 0.04 * (most - least)
        axes.set_xlim(min(low, least - margin), max(high, most + margin))
    axes.set_xlabel(panel.label)
    for number, row in enumerate(rows):
        if not any(row in found for _, found in panel.series):
            text = " unresolved: too few records"
            axes.text(0.5, number, text, va="center", fontsize=8, color=FAINT)


def client_plot(data: ReportData) -> Figure | None:
    """Draw each client's AUROC with its interval, and below them the average.

    Of many clients those with the most pairs are drawn, whatever their scores are. None
    where no record is known to be another client's than others are.
    """
    if not any(len(audit.headline.clients) > 1 for audit in data.audits):
        return None
    series: Series = [
        (label, {**_most_pairs(result.by_client), AVERAGE: result.auroc})
        for label, result in data.series
    ]
    clients = dict.fromkeys(c for _, found in series for c in found if c != AVERAGE)
    rows = [*clients, AVERAGE]
    panel = RowPanel(_WITHIN.format("client"), series)
    return row_plot([panel], rows, shaded=len(rows) - 1)


def _most_pairs(clients: Rows) -> Rows:
    """Return the clients with the most pairs of a member and another, in their order."""
    largest = sorted(clients, key=lambda name: -math.prod(clients[name].n))
    kept = set(largest[:MOST_CLIENTS])
    return {name: one for name, one in clients.items() if name in kept}


def clients_alt(data: ReportData) -> str:
    """Say what :func:`client_plot` shows, for those who do not see it."""
    series = [(label, _most_pairs(result.by_client)) for label, result in data.series]
    return f"AUROC of the attack for each client. {_read(series)}."


def _read(series: Series) -> str:
    return "; ".join(
        f"{label}: {', '.join(f'{name} {one}' for name, one in found.items())}"
        for label, found in series
    )


def class_plot(data: ReportData) -> Figure | None:
    """Draw each class's AUROC with its interval; None where no class has enough.

    A class without enough records has a row and no dot. Of many classes those with the
    most records are drawn, whatever their scores are.
    """
    if not data.have_classes:
        return None
    rows = _largest([(c.name, min(c.n)) for one in data.runs for c in one.classes])
    series = _class_series(data)
    if not any(found.keys() & set(rows) for _, found in series):
        return None
    return row_plot([RowPanel(_WITHIN.format("class"), series)], rows)


def _class_series(data: ReportData) -> Series:
    return [
        (one.label, {c.name: c.auroc for c in one.classes if c.auroc is not None})
        for one in data.runs
    ]


def _largest(sizes: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names with the most records in any run, in their order."""
    most: dict[str, int] = {}
    for name, size in sizes:
        most[name] = max(most.get(name, 0), size)
    largest = sorted(most, key=lambda name: -most[name])[:MOST_CLASSES]
    return [name for name in most if name in largest]


def classes_alt(data: ReportData) -> str:
    """Say what :func:`class_plot` shows, for those who do not see it."""
    return f"AUROC of the attack for each class. {_read(_class_series(data))}."


def property_plot(data: ReportData) -> Figure | None:
    """Draw what goes with exposure; None where no audit has tested anything.

    Of many classes those with the most records are drawn, whatever they show.
    """
    series = tested_properties(data)
    rows = _largest([(n, min(e.n)) for _, found in series for n, e in found.items()])
    if not rows:
        return None
    what = "Chance that a record with it is the more exposed"
    return row_plot([RowPanel(what, series)], rows)


def properties_alt(data: ReportData) -> str:
    """Say what :func:`property_plot` shows, for those who do not see it."""
    read = _read(tested_properties(data))
    return f"What goes with exposure, by property. {read}."


def attacks_plot(data: ReportData) -> Figure | None:
    """Draw a row for each attack with a dot for each run, the headline on top.

    The cells of MaxRényi's grid have a table of their own and are left out. None where
    there is one attack only: other pictures show it.
    """
    runs = [outside_grid(audit.results) for audit in data.audits]
    rows = list(dict.fromkeys(name for results in runs for name in results))
    if len(rows) < 2:
        return None
    series = [
        (one.label, {name: result.auroc for name, result in results.items()})
        for one, results in zip(data.runs, runs, strict=True)
    ]
    return row_plot(
        [RowPanel(_LEAKS_MORE, series)],
        rows,
        names=[f"{name}\n{_attack_counts(name, runs)}" for name in rows],
        shaded=0,
        is_named=len(runs) > 1,
    )


def _attack_counts(name: str, runs: Sequence[Mapping[str, AttackResult]]) -> str:
    """Say on how many clients and records an attack was made, if alike in all runs."""
    made = [results[name] for results in runs if name in results]
    sizes = {(len(result.clients), result.auroc.n) for result in made}
    if len(sizes) > 1:
        return "n differs: see the table"
    ((clients, n),) = sizes
    return f"{clients} client{'s' * (clients > 1)}, n = {n[0]} + {n[1]}"


def attacks_alt(data: ReportData) -> str:
    """Say what :func:`attacks_plot` shows, for those who do not see it."""
    parts = [
        f"{one.label}, {name}: {point(result.auroc)} {interval(result.auroc)}"
        for one in data.runs
        for name, result in outside_grid(one.audit.results).items()
    ]
    return f"AUROC of every attack. {'; '.join(parts)}."


def closeness_plot(data: ReportData) -> Figure | None:
    """Draw how close reconstructed models are to their own clients' and to the others'.

    Runs in which no model was an estimate are left out; None if that is all.
    """
    found = [(one.label, one.audit.part(CLOSENESS).closeness) for one in data.runs]
    rows = {label: close for label, close in found if close}
    if not rows:
        return None
    own, others = "to the same client's true model", "to other clients' (baseline)"
    distances = [
        (own, {label: c.distance for label, c in rows.items()}),
        (others, {label: c.distance_null for label, c in rows.items()}),
    ]
    agreements = [
        (own, {label: c.agreement for label, c in rows.items()}),
        (others, {label: c.agreement_null for label, c in rows.items()}),
    ]
    distance, agreement = "Relative L2 distance", "Same most likely next token"
    panels = [
        RowPanel(
            f"{distance} of the weight changes\n(0: equal; 1: as far as no change)",
            distances,
            (0.0, 1.0),
            (0.0, 1.0),
            f"{distance} of the weight changes",
        ),
        RowPanel(
            f"{agreement}\n(1: always)", agreements, (1.0,), (0.8, 1.0), agreement
        ),
    ]
    return row_plot(panels, list(rows), is_pair=True)


def closeness_alt(data: ReportData) -> str:
    """Say what :func:`closeness_plot` shows, for those who do not see it."""
    parts = [
        f"{one.label}: distance {close.distance}, of other clients "
        f"{close.distance_null}; agreement {close.agreement}, of other clients "
        f"{close.agreement_null}"
        for one in data.runs
        if (close := one.audit.part(CLOSENESS).closeness)
    ]
    return f"Reconstruction quality. {'. '.join(parts)}."


def server_plot(data: ReportData) -> Figure | None:
    """Draw an attack's AUROC on the clients' models and on the server's.

    Runs in which the server's model was not attacked are left out; None if that is all.
    """
    rows = {one.label: one.both for one in data.runs if one.gain and one.both}
    if not rows:
        return None
    names = ("on the clients' reconstructed models", "on the server's own model")
    series = [
        (name, {label: both[side].auroc for label, both in rows.items()})
        for side, name in enumerate(names)
    ]
    measure = _LEAKS_MORE.partition("   ")[0]
    panel = RowPanel(_LEAKS_MORE, series, (0.5,), (0.48, 0.56), measure)
    return row_plot([panel], list(rows), is_pair=True)


def server_alt(data: ReportData) -> str:
    """Say what :func:`server_plot` shows, for those who do not see it."""
    parts = [
        f"{one.label}: clients' {one.both[0].auroc}, server's {one.both[1].auroc}"
        for one in data.runs
        if one.both
    ]
    return f"AUROC on clients' and on the server's model. {'; '.join(parts)}."


def exposure_plot(data: ReportData) -> Figure | None:
    """Draw the shares of members and others that at least so many attacks point at.

    Runs without the part are left out; None if that is all.
    """
    found = _exposures(data)
    if not found:
        return None
    several = len(found) > 1
    with house_style():
        figure = new_figure(7.6, 3.4 + 0.09 * len(found))
        axes = figure.subplots()
        light_grid(axes)
        for index, (label, shared) in enumerate(found):
            for side, style in (("members", "o"), ("others", "x")):
                number = 2 * index + (side == "others")
                shift = (number - len(found) + 0.5) * 0.3 / len(found)
                paint = colour(index if several else number)
                name = f"{label}, {side}" if several else side
                _shares(axes, shared, side, style, paint, shift, name)
                if not several:
                    axes.plot([], [], style, color=paint, label=side)
            if several:
                axes.plot([], [], "o", color=colour(index), label=shortened(label))
        if several:  # a colour is a run, a mark says who
            axes.plot([], [], "o", color=FAINT, label="members")
            axes.plot([], [], "x", color=FAINT, label="others")
        levels = found[0][1].levels
        axes.plot(
            [level.attacks for level in levels],
            [level.independent for level in levels],
            color=FAINT,
            linewidth=1,
            linestyle=":",
            label="independent attacks that know nothing",
        )
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("At least so many attacks point at the record")
        axes.set_ylabel("Share of records")
        figure.legend(loc="outside upper center", ncols=2 if several else 3)
    return figure


def _shares(
    axes: Axes,
    shared: SharedExposure,
    side: str,
    style: str,
    paint: str,
    shift: float,
    name: str,
) -> None:
    shares: list[Estimate] = [getattr(level, side) for level in shared.levels]
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
        text = value_text(f"{name}, {level.attacks} or more", "share", share)
        spot(axes, at, share.value, text)


def _exposures(data: ReportData) -> list[tuple[str, SharedExposure]]:
    parts = [(one.label, one.audit.part(RECORD_EXPOSURE)) for one in data.runs]
    return [(label, part.shared) for label, part in parts if part is not None]


def exposure_alt(data: ReportData) -> str:
    """Say what :func:`exposure_plot` shows, for those who do not see it."""
    parts = [
        f"{label}: "
        + ", ".join(
            f"{level.attacks} or more: members {level.members}, others {level.others}"
            for level in shared.levels
        )
        for label, shared in _exposures(data)
    ]
    return f"Shares of records that several attacks point at. {'; '.join(parts)}."


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
        for height, (label, audit) in enumerate(rows):
            _bar(axes, label, audit, height)
        _epsilon_axis(axes, [audit for _, audit in rows])
        name_rows(axes, [shortened(label, _LONGEST) for label, _ in rows])
        entries = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(
            entries.values(), entries.keys(), loc="outside upper center", ncols=4
        )
    return figure


def _bar(axes: Axes, label: str, audit: Audit, height: int) -> None:
    """Draw one run: a bar to what is shown, on a paler one to the ceiling."""
    one_run = audit.part(ONE_RUN)
    assert one_run is not None
    bound = one_run.bound
    axes.barh(height, bound.ceiling, 0.5, color=PALE, label="could have been shown")
    ends = [height - 0.25, height + 0.25]
    axes.plot([bound.ceiling] * 2, ends, color=FAINT, linewidth=2, zorder=3)
    axes.barh(height, bound.value, 0.5, color=_SHOWN, label="shown: at least")
    axes.text(
        bound.ceiling,
        height + 0.3,
        f"shown {bound.value:.2f}, ceiling {bound.ceiling:.2f}",
        ha="right",
        va="top",
        fontsize=8,
        color=FAINT,
    )
    spot(axes, bound.value, height, f"{label}: shown {bound}")
    _mark(axes, audit.claimed_epsilon, height - 0.12, "claimed")
    _mark(axes, audit.certified_epsilon, height + 0.12, "certified: at most")


def _mark(axes: Axes, value: float | None, height: float, name: str) -> None:
    """Draw a promise; nothing where there is none."""
    if value is None:
        return
    marker, paint = _PROMISES[name]
    axes.plot(
        value,
        height,
        marker,
        color=paint,
        markeredgecolor="white",
        markersize=8,
        linestyle="",
        label=name,
        zorder=4,
        clip_on=False,
    )
    spot(axes, value, height, f"ε {name} {epsilon(value)}")


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
