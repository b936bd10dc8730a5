"""Values that show when a point of a picture is pointed at, or reached by keyboard.

A spot is an invisible marker that carries its text as an id; :func:`as_value` makes
each one an element with a title, which any browser shows and a screen reader reads.
"""

from xml.etree.ElementTree import Element

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from privaudit.statistics.estimate import Estimate

_MARK = "value:"
_WIDTH = 16.0  # points: a finger hits it


def spot(axes: Axes, x: int | float, y: int | float, text: str) -> None:
    """Put a text where a point is; limits stay as they are."""
    mark = Line2D(
        [x],
        [y],
        marker="o",
        markersize=_WIDTH,
        markeredgewidth=0,
        linestyle="",
        color="white",
        alpha=0,
        zorder=9,
        gid=f"{_MARK}{text}",
    )
    axes.add_artist(mark)  # a plot would count it when limits are chosen


def ends(estimate: Estimate) -> tuple[float, float]:
    """Return an interval, or the value twice where there is none."""
    if estimate.unresolved:
        return estimate.value, estimate.value
    return estimate.low, estimate.high


def errors(estimate: Estimate) -> Float[np.ndarray, "2 1"]:
    """Return how far an interval reaches below and above the value."""
    low, high = ends(estimate)
    return np.array([[estimate.value - low], [high - estimate.value]])


def value_text(what: str, measure: str, estimate: Estimate) -> str:
    """Return a spot's text: what it is of, and the number with interval and n."""
    return f"{what}: {measure} {estimate}"


def as_value(group: Element, mark: str) -> None:
    """Make a spot's group, known by its id, an element with a title; no other."""
    if not mark.startswith(_MARK):
        return
    uses = list(group.iter("use"))
    for use in uses:
        use.set("style", "fill-opacity:0")
    group[:] = [Element("title"), *group.iter("defs"), *uses]
    group[0].text = mark.removeprefix(_MARK)
    group.attrib.update({"class": "value", "role": "img"})
