"""The page of a trade-off: leakage against utility and epsilon, as pictures, table and numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from scipy.special import fdtri

from privaudit.core.formatting import as_csv, epsilon, markdown_table
from privaudit.core.storage import storage_errors, to_json
from privaudit.evaluation.metric import Metric
from privaudit.evaluation.tradeoff.result import SweepCell, Tradeoff, other_metrics
from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    colour,
    ends,
    errors,
    house_style,
    light_grid,
    line_style,
    new_figure,
    spot,
    to_png,
    to_svg,
    value_text,
)
from privaudit.report.figures.tradeoff_figure import label_points
from privaudit.report.page_template import render
from privaudit.report.report_data import shortened
from privaudit.report.wording import heading, interval, point
from privaudit.runs.own_files import check_folder, write_output
from privaudit.statistics.estimate import Estimate

_PANELS = (
    ("local", "{}, own classes"),
    ("neighbour", "{}, others' classes"),
    ("success", "Success rate of the attack"),
    ("auroc", "AUROC of the attack"),
)
_GAIN = ("gain", "{} gain over zero-shot")
_LINES = {"success": 0.5, "auroc": 0.5, "gain": 0.0}  # chance; no training
_MARKERS = "osD^v"  # of modes
_ELLIPSE = 5  # seeds, from which on the plane holds one


def epsilon_curves(cells: Sequence[SweepCell], metric: str = "accuracy") -> Figure:
    """Draw means over seeds with their intervals against epsilon, "none" at the right.

    Source: Tran et al., "Privacy-preserving personalized federated prompt learning for
    multimodal large language models", ICLR 2025, figure 3; there without AUROC.

    Where every client owns all classes there are no others': the gain over zero-shot
    stands in that place.
    """
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    positions = _positions(cells)
    has_others = any(cell.neighbour for cell in cells)
    panels = [p if p[0] != "neighbour" or has_others else _GAIN for p in _PANELS]
    with house_style():
        figure = new_figure(7.6, 6.0)
        grid: list[Axes] = list(figure.subplots(2, 2, sharex=True).flat)
        for axes, (measure, title) in zip(grid, panels, strict=True):
            axes.set_ylabel(title.format(heading(metric)))
            for index, mode in enumerate(modes):
                mode_cells = [cell for cell in cells if cell.mode == mode]
                _draw_series(axes, mode_cells, measure, positions, index, len(modes))
            light_grid(axes)
            if measure in _LINES:
                axes.axhline(_LINES[measure], color=INK, linewidth=1, zorder=1)
        for axes in grid:
            _epsilon_axis(axes, positions)
        if has_others:
            _share_scale(grid[:2])
        _share_scale(grid[2:])
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(modes))
    return figure


def _positions(cells: Sequence[SweepCell]) -> dict[float | None, float]:
    """Return where each epsilon is drawn: its logarithm; 0 and "none" beyond them all."""
    finite = sorted({cell.epsilon for cell in cells if cell.epsilon})
    positions: dict[float | None, float] = {e: float(np.log10(e)) for e in finite}
    if any(cell.epsilon == 0 for cell in cells):
        positions[0.0] = min(positions.values(), default=0.0) - 0.6
    if any(cell.epsilon is None for cell in cells):
        positions[None] = max(positions.values(), default=0.0) + 0.6
    return positions


def _draw_series(
    axes: Axes,
    cells: Sequence[SweepCell],
    measure: str,
    positions: dict[float | None, float],
    index: int,
    modes: int,
) -> None:
    """Draw one mode, a little aside so that its intervals cover no other's."""
    aside = (index - (modes - 1) / 2) * 0.035
    points: list[tuple[float, Estimate]] = [
        (positions[cell.epsilon] + aside, getattr(cell, measure))
        for cell in reversed(cells)
        if getattr(cell, measure) is not None
    ]
    if not points:
        return
    x = [position for position, _ in points]
    values = np.array([estimate.value for _, estimate in points])
    bars = np.hstack([errors(estimate) for _, estimate in points])
    axes.errorbar(
        x,
        values,
        yerr=bars,
        fmt=_MARKERS[index % len(_MARKERS)],
        linestyle=line_style(index),
        color=colour(index),
        markersize=5.5,
        elinewidth=1.1,
        capsize=2,
        linewidth=1.5,
        label=cells[0].mode,
        zorder=3,
    )
    for position, estimate in points:
        text = value_text(cells[0].mode, axes.get_ylabel(), estimate)
        spot(axes, position, estimate.value, text)


def _epsilon_axis(axes: Axes, positions: dict[float | None, float]) -> None:
    names = ["none" if e is None else f"{e:g}" for e in positions]
    axes.set_xticks(list(positions.values()), names)
    axes.tick_params(labelbottom=True)
    axes.set_xlabel("ε   (smaller: more noise)")
    if None in positions:
        between = positions[None] - 0.3
        axes.axvline(between, color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)))


def _share_scale(panels: Sequence[Axes]) -> None:
    """Give panels of one kind one scale, so that they can be compared by eye."""
    limits = [axes.get_ylim() for axes in panels]
    for axes in panels:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


_DASHES = (0, (1, 2))


def tradeoff_plane(found: Tradeoff) -> Figure:
    """Draw every cell by its AUROC and its utility, means over seeds with intervals.

    What another cell dominates by test is hollow. The dotted line is the front of the
    means alone, for the eye: a cell below it need not be worse.
    """
    cells, first = found.cells, found.points[0]
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    with house_style():
        rows = -(-len(modes) // 2)
        figure = new_figure(7.6, 4.6 + 0.18 * rows)
        axes = figure.subplots()
        light_grid(axes)
        stay = set(found.front.not_dominated)
        for position, cell in enumerate(cells):
            _cross(axes, cell, modes.index(cell.mode), position in stay)
        axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
        _staircase(axes, cells)
        axes.margins(x=0.08, y=0.14)  # labels stand around the marks
        _name_axes(axes, found)
        figure.legend(
            handles=_legend(modes), loc="outside upper center", ncols=2, fontsize=8
        )
        _label(figure, axes, cells)
        for cell in cells:
            spot(
                axes, cell.auroc.value, cell.local.value, cell_text(cell, first.metric)
            )
    return figure


def changes_plane(found: Tradeoff) -> Figure:
    """Draw how far every cell lies from the first one, paired by seed, with 95 % ellipses.

    What seeds share is no error there. Of fewer than five seeds an ellipse would fill the
    plane, and is left out.

    Source: Hotelling, "The generalization of Student's ratio", Annals of Mathematical
    Statistics 2, 1931.
    """
    first, metric = found.cells[0], found.points[0].metric
    modes = list(dict.fromkeys(cell.mode for cell in found.cells))
    with house_style():
        figure = new_figure(7.6, 4.6)
        axes = figure.subplots()
        light_grid(axes)
        axes.axhline(0, color=INK, linewidth=1, zorder=1)
        axes.axvline(0, color=INK, linewidth=1, zorder=1)
        for one in found.changes():
            mode, at = modes.index(one.cell.mode), (one.leak.value, one.utility.value)
            axes.plot(*at, _MARKERS[mode % len(_MARKERS)], color=colour(mode))
            if len(one.moved) >= _ELLIPSE:
                axes.add_patch(_ellipse(one.moved, colour(mode)))
            name = shortened(one.cell.name)
            axes.annotate(name, at, (4, 4), textcoords="offset points")
            said = f"{one.cell.name}: AUROC {one.leak}, {metric} {one.utility}"
            spot(axes, *at, said)
        axes.set_xlabel(f"AUROC less that of {first.name}   (left: leaks less)")
        axes.set_ylabel(f"{heading(metric)} less its   (up: better)")
        axes.margins(x=0.15, y=0.15)
    return figure


def _ellipse(moved: Float[np.ndarray, "seeds 2"], paint: str) -> Ellipse:
    """Return where the mean lies in 95 % of cases."""
    count = len(moved)
    values, axes = np.linalg.eigh(np.cov(moved.T) / count)
    reach = 2 * (count - 1) / (count - 2) * float(fdtri(2, count - 2, 0.95))
    width, height = 2 * np.sqrt(np.maximum(values, 0) * reach)
    angle = float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    centre = tuple(moved.mean(axis=0))
    return Ellipse(centre, width, height, angle=angle, color=paint, alpha=0.2)


def cell_text(cell: SweepCell, metric: str) -> str:
    """Return what a cell's point says."""
    return f"{value_text(cell.name, 'AUROC', cell.auroc)} seeds; {metric} {cell.local}"


def plane_alt(found: Tradeoff) -> str:
    """Say what :func:`tradeoff_plane` shows, for those who do not see it."""
    metric = found.points[0].metric
    parts = [
        f"{cell_text(cell, metric)}; {found.standing(position)}"
        for position, cell in enumerate(found.cells)
    ]
    return f"Utility against leakage of each cell. {'. '.join(parts)}."


def _cross(axes: Axes, cell: SweepCell, mode: int, stays: bool) -> None:
    x, y = cell.auroc, cell.local
    axes.errorbar(
        x.value,
        y.value,
        xerr=errors(x),
        yerr=errors(y),
        fmt=_MARKERS[mode % len(_MARKERS)],
        color=colour(mode),
        markersize=7.5,
        markerfacecolor=colour(mode) if stays else "white",
        elinewidth=1.2 if stays else 0.7,
        alpha=1.0 if stays else 0.75,
        zorder=4 if stays else 3,
    )


def _staircase(axes: Axes, cells: Sequence[SweepCell]) -> None:
    """Draw the front of the means: use that is had with at most so much leak."""
    best: list[tuple[float, float]] = []
    for cell in sorted(cells, key=lambda c: (c.auroc.value, -c.local.value)):
        if not best or cell.local.value > best[-1][1]:
            best.append((cell.auroc.value, cell.local.value))
    x, y = zip(*best, strict=True)
    axes.step(x, y, where="post", color=FAINT, linewidth=1, linestyle=_DASHES, zorder=2)


def _name_axes(axes: Axes, found: Tradeoff) -> None:
    first = found.points[0]
    attack = f" of {first.attack}" if first.attack else ""
    axes.set_xlabel(f"Leakage: AUROC{attack}   (0.5: chance; right: leaks more)")
    axes.set_ylabel(
        f"Utility: {first.metric} on a client's\nown classes   (up: better)"
    )


def _legend(modes: Sequence[str]) -> list[Line2D]:
    handles = [
        Line2D(
            [], [], color=colour(index), marker=_MARKERS[index % len(_MARKERS)],
            linestyle="", markersize=7, label=shortened(mode),
        )
        for index, mode in enumerate(modes)
    ]  # fmt: skip
    hollow = Line2D(
        [], [], color=FAINT, marker="o", markerfacecolor="white", linestyle="",
        label="hollow: dominated by another, by test",
    )  # fmt: skip
    line = Line2D(
        [], [], color=FAINT, linestyle=_DASHES, label="front of the means, no test"
    )
    return [*handles, hollow, line]


def _label(figure: Figure, axes: Axes, cells: Sequence[SweepCell]) -> None:
    """Write epsilons beside the cells of modes that have several."""
    modes = [cell.mode for cell in cells]
    labelled = [c for c in cells if c.epsilon is not None or modes.count(c.mode) > 1]
    if not labelled:
        return
    points = [(cell.auroc.value, cell.local.value) for cell in labelled]
    labels = [
        "no ε" if c.epsilon is None else f"ε {epsilon(c.epsilon)}" for c in labelled
    ]
    crosses = [(ends(cell.auroc), ends(cell.local)) for cell in labelled]
    label_points(figure, axes, points, labels, crosses)
    shown = list(dict.fromkeys(modes))
    for text, cell in zip(axes.texts, labelled, strict=True):
        text.set_color(colour(shown.index(cell.mode)))


_MEASURES = ("auroc", "tpr", "success", "local", "neighbour", "gain", "change")


def write_sweep(found: Tradeoff, path: Path) -> Path:
    """Write sweep.html, .md, .csv and .json with pictures, and return the page.

    plane.svg and .png show leak against use, change.svg and .png how both differ from the
    first cell's; where budgets were swept, sweep.svg and .png show both against epsilon.
    """
    with storage_errors(check_folder(path)):
        path.mkdir(parents=True, exist_ok=True)
    figures = _figures(found)
    pictures = _pictures(figures)
    for name, (figure, _) in figures.items():
        write_output(path / f"{name}.svg", pictures[name].encode())
        write_output(path / f"{name}.png", to_png(figure))
    content = {"remarks": _remarks(found), **found.to_dict()}
    write_output(path / "sweep.json", to_json(content))
    write_output(path / "sweep.csv", _as_csv(found).encode())
    write_output(path / "sweep.md", _as_markdown(found).encode())
    write_output(path / "sweep.html", _page(found, pictures).encode())
    return path / "sweep.html"


def render_sweep(found: Tradeoff) -> str:
    """Return the page of :func:`write_sweep`."""
    return _page(found, _pictures(_figures(found)))


def _figures(found: Tradeoff) -> dict[str, tuple[Figure, str]]:
    """Return each figure with what it shows, by the name of its file."""
    figures = {"plane": (tradeoff_plane(found), plane_alt(found))}
    if changes := found.changes():
        named = (f"{c.cell.name}: AUROC {c.leak}, use {c.utility}" for c in changes)
        alt = f"Differences from {found.cells[0].name}. {'. '.join(named)}."
        figures["change"] = changes_plane(found), alt
    if any(cell.epsilon is not None for cell in found.cells):
        curves = epsilon_curves(found.cells, found.points[0].metric)
        figures["sweep"] = curves, "Utility and leakage against epsilon"
    return figures


def _pictures(figures: Mapping[str, tuple[Figure, str]]) -> dict[str, Markup]:
    return {
        name: Markup(to_svg(figure, name, description))  # drawn here: text is paths
        for name, (figure, description) in figures.items()
    }


def _page(found: Tradeoff, figures: Mapping[str, Markup]) -> str:
    return render(
        "sweep.html.jinja",
        figures=figures,
        header=_header(found),
        rows=_rows(found),
        verdict=_verdict(found),
        reported=_reported(found),
        reported_header=_reported_header(found),
        remarks=_remarks(found),
    )


def _verdict(found: Tradeoff) -> str:
    """Say in a sentence what the sweep decided."""
    count, left = len(found.cells), found.not_dominated
    if count == 1:
        return "One setting was tried, so there is nothing to weigh it against."
    if len(left) == count:
        return (
            f"None of {count} settings is dominated on these seeds; this does not prove "
            "that they are equal."
        )
    names = _names([cell.name for cell in left])
    rest = count - len(left)
    return (
        f"{rest} of {count} settings are dominated: another leaks less or has more "
        f"utility, and is no worse otherwise. Not dominated: {names}."
    )


def _header(found: Tradeoff) -> tuple[str, ...]:
    use = heading(found.points[0].metric)
    return (
        "Mode",
        "ε",
        "Seeds",
        f"{use}, own classes",
        f"{use}, others' classes",
        "Gain over zero-shot",
        "Success rate of the attack",
        "AUROC of the attack",
        *(f"{heading(metric.title)} of the attack" for metric in _others(found)),
        "TPR at FPR 1 %",
        f"AUROC less {_reference(found.cells)}",
        "ε certified",
        "Standing",
    )


def _others(found: Tradeoff) -> list[Metric[Any]]:
    """Return the metrics that have no column of their own, as far as runs have them."""
    known = {code for cell in found.cells for code in cell.others}
    return [metric for metric in other_metrics() if metric.code in known]


def _reference(cells: Sequence[SweepCell]) -> str:
    """Say what the differences of a table are to."""
    to_none = {_has_own_reference(cell) for cell in cells if cell.reference}
    if to_none == {False}:
        return "the first row's"
    return "the reference's" if len(to_none) == 2 else "that without noise"


def _has_own_reference(cell: SweepCell) -> bool:
    return cell.reference == (cell.mode, None)


def _row(cell: SweepCell, others: Sequence[Metric[Any]]) -> list[str]:
    measured = (cell.local, cell.neighbour, cell.gain, cell.success, cell.auroc)
    return [
        cell.mode,
        epsilon(cell.epsilon),
        str(len(cell.seeds)),
        *(_number(estimate) for estimate in measured),
        *(
            _number(cell.others[m.code]) if m.code in cell.others else ""
            for m in others
        ),
        _rate(cell.tpr),
        _number(cell.change) if cell.change else "",
        epsilon(cell.certified),
    ]


def _rows(found: Tradeoff) -> list[list[str]]:
    others = _others(found)
    return [
        [*_row(cell, others), found.standing(position)]
        for position, cell in enumerate(found.cells)
    ]


def _reported(found: Tradeoff) -> list[list[str]]:
    """Return the rows on other seeds: alike, but nothing is compared there."""
    others = _others(found)
    return [
        [*_row(cell, others)[:-2], epsilon(cell.certified)] for cell in found.reported
    ]


def _rate(estimate: Estimate | None) -> str:
    """Return a rate of pooled records, or what is missing; n is not that of seeds."""
    if estimate is None:
        return ""
    if estimate.unresolved:
        return f"unresolved: {estimate.unresolved}"
    counts = " + ".join(str(count) for count in estimate.n)
    return f"{_number(estimate)}, n = {counts}"


def _number(estimate: Estimate | None) -> str:
    if estimate is None:
        return "all own"
    return f"{point(estimate)} {interval(estimate)}"


def _remarks(found: Tradeoff) -> list[str]:
    """Say what the numbers are, and what the lowest of them is not."""
    cells, attack = found.cells, found.points[0].attack
    lowest = min(cells, key=lambda cell: cell.success.value)
    units = dict.fromkeys(one.guarantee for one in found.points if one.guarantee)
    for_what = f", for {' or '.join(units)}" if units else ""
    return [
        "Means over seeds with 95 % Student's t intervals; a seed sets partition, "
        "membership, initialisation, batches and noise. TPR at FPR 1 % pools all "
        "seeds' records at one threshold, n members and non-members; its interval "
        "adds the sampling error of records to that of seeds.",
        *([f"AUROC, TPR and success rate are those of {attack}."] if attack else []),
        *_about_differences(cells),
        f"The lowest success rate, {_number(lowest.success)}, is that of "
        f"{lowest.mode} at ε {epsilon(lowest.epsilon)}. It is the lowest of "
        f"{len(cells)} cells, picked afterwards: the minimum of {len(cells)} noisy "
        "numbers is biased downwards, so confirm it on other seeds before quoting "
        "it.",
        "ε is what the method claims or was set to; ε certified is what is proved for "
        f"this adversary{for_what}. The runs' noise derives from their "
        "seeds (repeatable, not private): it is what they would have under secret "
        "keys.",
        *found.remarks(),
    ]


def _about_differences(cells: Sequence[SweepCell]) -> list[str]:
    own_modes = [c.mode for c in cells if c.reference and _has_own_reference(c)]
    rest = [c.mode for c in cells if c.reference and not _has_own_reference(c)]
    first = f"the first row, {cells[0].mode} at ε {epsilon(cells[0].epsilon)}"
    references = []
    if own_modes:
        references.append(f"of {_names(own_modes)} to the same mode without noise")
    if rest:
        references.append(f"of {_names(rest)} to {first}")
    if not references:
        return []
    return [
        f"Differences in AUROC are {'; '.join(references)}. They are paired by seed, "
        "with simultaneous 95 % intervals (Bonferroni)."
    ]


def _names(modes: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(modes))


def _as_markdown(found: Tradeoff) -> str:
    header = _header(found)
    text = markdown_table(header, _rows(found)) + "\n"
    if found.reported:
        others = markdown_table(_reported_header(found), _reported(found))
        text += f"\nOn other seeds:\n\n{others}\n"
    return text + "\n" + "".join(f"- {remark}\n" for remark in _remarks(found))


def _reported_header(found: Tradeoff) -> tuple[str, ...]:
    return (*_header(found)[:-3], "ε certified")


def _as_csv(found: Tradeoff) -> str:
    """Return a line for each cell: numbers as they are, empty where there is none."""
    rows = [
        {
            **_line(cell),
            "standing": found.standing(position),
            "chosen_on": "these seeds",
        }
        for position, cell in enumerate(found.cells)
    ]
    return as_csv(
        [*rows, *({**_line(c), "chosen_on": "other seeds"} for c in found.reported)]
    )


def _line(cell: SweepCell) -> dict[str, Any]:
    line: dict[str, Any] = {"mode": cell.mode, "epsilon": cell.epsilon}
    line["seeds"] = " ".join(map(str, cell.seeds))
    measured: dict[str, Estimate | None] = {n: getattr(cell, n) for n in _MEASURES}
    for name, estimate in (measured | dict(cell.others)).items():
        entries = estimate.to_dict() if estimate else {}
        for end, column in (("value", ""), ("low", "_low"), ("high", "_high")):
            line[name + column] = entries.get(end)
    return {**line, "certified": cell.certified}
