"""The picture of a sweep: accuracy and attack success against epsilon."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privaudit.evaluation.tradeoff.cells import SweepCell
from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
)
from privaudit.report.figures.figure_values import errors, spot, value_text
from privaudit.report.wording import heading
from privaudit.statistics.estimate import Estimate

_PANELS = (
    ("local", "{}, own classes"),
    ("neighbour", "{}, others' classes"),
    ("success", "Success rate of the attack"),
    ("auroc", "AUROC of the attack"),
)
_GAIN = ("gain", "{} gain over zero-shot")
_LINES = {"success": 0.5, "auroc": 0.5, "gain": 0.0}  # chance; no training
_MARKERS = "osD^v"


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
    """Return where each epsilon is drawn: its logarithm, and "none" beyond them all."""
    finite = sorted({cell.epsilon for cell in cells if cell.epsilon is not None})
    places: dict[float | None, float] = {e: float(np.log10(e)) for e in finite}
    if any(cell.epsilon is None for cell in cells):
        places[None] = max(places.values(), default=0.0) + 0.6
    return places


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
    x = [place for place, _ in points]
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
    for place, estimate in points:
        text = value_text(cells[0].mode, axes.get_ylabel(), estimate)
        spot(axes, place, estimate.value, text)


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
