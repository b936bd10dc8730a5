"""Labels beside points that cover neither one another nor the points."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, BboxBase

from privaudit.report.figures.figure_style import INK

Point = tuple[float, float]
Offset = tuple[int, int]
_SIZE = 8.5  # points
_MARKER = 7.0  # half a marker's width, in pixels at 100 dots per inch
_SIDES = (("left", 1), ("right", -1))
_HEIGHTS = (8, -8, 20, -20, 32, -32, 46, -46, 60, -60)


def label_points(
    figure: Figure,
    axes: Axes,
    points: Sequence[Point],
    labels: Sequence[str],
    crosses: Sequence[tuple[Point, Point]],
) -> None:
    """Write each label at the free place nearest its point.

    Greedy, in the order given: every place is tried, and the one that covers least is
    taken, so the result depends on nothing but the arguments. The layout is frozen.

    Args:
        figure: Complete but for the labels.
        axes: Where the points are.
        points: In data coordinates.
        labels: One for each.
        crosses: Each point's intervals, as (low, high) in x and in y.
    """
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.execute(figure)
    figure.set_layout_engine("none")
    taken = [_marker(axes, point) for point in points]
    thin = [
        bar for p, c in zip(points, crosses, strict=True) for bar in _bars(axes, p, c)
    ]
    thin += [line.get_window_extent().padded(1) for line in axes.get_lines()]
    for point, label in zip(points, labels, strict=True):
        if label:
            offset, side, box = _best_place(figure, axes, point, label, taken, thin)
            axes.add_artist(_annotation(axes, point, label, offset, side))
            taken.append(box)


def _best_place(
    figure: Figure,
    axes: Axes,
    point: Point,
    label: str,
    taken: Sequence[Bbox],
    thin: Sequence[Bbox],
) -> tuple[Offset, str, Bbox]:
    """Return where a label stands, from its point in points, on which side, its box."""
    places: list[tuple[float, int, Offset, str, Bbox]] = []
    x, y = axes.transData.transform(point)
    for side, sign in _SIDES:
        extent = _extent(figure, label, side)
        for height in _HEIGHTS:
            offset = (8 * sign, height)
            shift = [pixels * figure.dpi / 72 for pixels in offset]
            box = extent.translated(x + shift[0], y + shift[1])
            outside = box.width * box.height - _overlap(box, axes.bbox)
            cost = (
                3 * outside
                + 5 * sum(_overlap(box, other) for other in taken)
                + 2 * sum(_overlap(box, other) for other in thin)
                + 2 * abs(height)
            )
            order = 2 * _HEIGHTS.index(height) + (sign < 0)
            places.append((cost, order, offset, side, box))
    return min(places, key=lambda place: place[:2])[2:]


def _annotation(
    axes: Axes, point: Point, label: str, offset: Offset, side: str
) -> Annotation:
    far = abs(offset[1]) > 10
    arrow = {"arrowstyle": "-", "color": INK, "linewidth": 0.5, "shrinkB": 4}
    return Annotation(
        label,
        point,
        xycoords=axes.transData,
        xytext=offset,
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=_SIZE,
        color=INK,
        annotation_clip=False,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        arrowprops=arrow if far else None,
    )


def _extent(figure: Figure, label: str, side: str) -> Bbox:
    """Return a label's box in pixels, around where it is anchored."""
    text = Text(0, 0, label, ha=side, va="center", fontsize=_SIZE)
    text.set_figure(figure)
    return Bbox(text.get_window_extent().padded(2))


def _marker(axes: Axes, point: Point) -> Bbox:
    x, y = axes.transData.transform(point)
    return Bbox.from_extents(x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER)


def _bars(axes: Axes, point: Point, cross: tuple[Point, Point]) -> list[Bbox]:
    (left, right), (bottom, top) = cross
    flat = axes.transData.transform([(left, point[1]), (right, point[1])])
    tall = axes.transData.transform([(point[0], bottom), (point[0], top)])
    return [Bbox(flat).padded(2), Bbox(tall).padded(2)]


def _overlap(a: BboxBase, b: BboxBase) -> float:
    shared = Bbox.intersection(a, b)
    return shared.width * shared.height if shared is not None else 0.0
