"""How a training goes, round by round."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privaudit.report.figures.figure_style import (
    colour,
    house_style,
    light_grid,
    new_figure,
    spot,
)

Lines = Sequence[Mapping[str, Any]]
_SHOWN = (
    ("training_loss", "Training loss"),
    ("local_accuracy", "Utility, own classes"),
)


def training_plot(lines: Lines) -> Figure | None:
    """Draw the clients' mean loss, and utility where it was measured.

    They have no intervals: this is to watch a training by, and no result. None if
    nothing was measured.
    """
    panels = [(key, name) for key, name in _SHOWN if _points(lines, key)]
    if not panels:
        return None
    with house_style():
        figure = new_figure(7.6, 0.5 + 1.6 * len(panels))
        column = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
        for number, (axes, (key, name)) in enumerate(zip(column, panels, strict=True)):
            _panel(axes, _points(lines, key), name, colour(number))
        column[-1].set_xlabel("Round")
        column[-1].set_xlim(0.5, len(lines) + 0.5)
        column[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _points(lines: Lines, key: str) -> list[tuple[int, float]]:
    """Return rounds, counted from one, with a value each."""
    return [
        (round, float(line[key]))
        for round, line in enumerate(lines, start=1)
        if line.get(key) is not None
    ]


def _panel(
    axes: Axes, points: Sequence[tuple[int, float]], name: str, paint: str
) -> None:
    light_grid(axes)
    rounds, values = zip(*points, strict=True)
    axes.plot(rounds, values, color=paint, marker="o", markersize=3.5, linewidth=1.6)
    axes.set_ylabel(name)
    for number, value in points:
        spot(axes, number, value, f"round {number}: {name.lower()} {value:.4g}")


def training_alt(lines: Lines) -> str:
    """Say what :func:`training_plot` shows, for those who do not see it."""
    parts = []
    for key, name in _SHOWN:
        if points := _points(lines, key):
            (first, start), (last, end) = points[0], points[-1]
            parts.append(f"{name} {start:.4g} in round {first}, {end:.4g} in {last}")
    return f"Training round by round. {'; '.join(parts)}."
