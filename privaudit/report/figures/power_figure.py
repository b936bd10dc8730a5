"""The picture of a plan: the chance of an answer over the number of records."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import percent
from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    colour,
    house_style,
    light_grid,
    line_style,
    new_figure,
)
from privaudit.statistics.power import (
    AurocDesign,
    DifferenceDesign,
    power_curve,
    required_n,
)

_POINTS = 80


def power_plot(
    designs: Mapping[str, AurocDesign | DifferenceDesign], power: float = 0.8
) -> Figure:
    """Draw each design's power over members, and as many non-members.

    A dot marks where it reaches ``power``; the axis ends at twice the largest of them.

    Args:
        designs: By label, at least one.
        power: In (0, 1).

    Raises:
        ConfigError: There is no design, or one does not reach that power.
    """
    if not designs:
        raise ConfigError("A power curve needs a design, and there is none. Add one.")
    needed = {label: required_n(design, power) for label, design in designs.items()}
    sizes = np.geomspace(4, 2 * max(needed.values()), _POINTS)
    with house_style():
        figure = new_figure(6.4, 3.6)
        axes = figure.subplots()
        light_grid(axes)
        axes.axhline(power, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        for index, (label, design) in enumerate(designs.items()):
            paint, style = colour(index), line_style(index)
            curve = power_curve(design, sizes)
            name = f"{label}: {needed[label]}"
            axes.plot(sizes, curve, color=paint, linestyle=style, label=name)
            axes.plot([needed[label]], [power], "o", color=paint, markersize=5)
        axes.set(xscale="log", xlim=(sizes[0], sizes[-1]), ylim=(0, 1))
        axes.yaxis.set_major_formatter(lambda share, _: percent(round(share, 4)))
        axes.xaxis.set_major_formatter(lambda size, _: f"{size:,.0f}")
        axes.set_xlabel("Members, and as many non-members")
        axes.set_ylabel("Chance that the interval decides")
        axes.legend(
            title=f"n of each class for {percent(power)}",
            loc="upper left",
            bbox_to_anchor=(1, 1),
            labelcolor=INK,
        )
    return figure
