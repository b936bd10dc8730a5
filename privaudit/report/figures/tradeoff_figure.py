"""The trade-off of runs as a picture: utility against leakage, with labels that cover nothing."""

from collections.abc import Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox, BboxBase

from privaudit.report.figures.figure_style import (
    FAINT,
    INK,
    NARROW,
    colour,
    ends,
    errors,
    house_style,
    light_grid,
    narrow_svg,
    new_figure,
    spot,
    to_svg,
    value_text,
)
from privaudit.report.report_data import MOST_RUNS, ReportData, shortened
from privaudit.report.wording import privacy_sort
from privaudit.statistics.estimate import Estimate

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
    """Write each label at the free place nearest its point, off all points' intervals.

    Greedy, in the order given: every place is tried, and the one that covers least is
    taken, so the result depends on nothing but the arguments. The layout is frozen.
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
    choices: list[tuple[float, int, Offset, str, Bbox]] = []
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
            choices.append((cost, order, offset, side, box))
    return min(choices, key=lambda choice: choice[:2])[2:]


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


_MARKERS = {
    "no privacy mechanism": "o",
    "no mechanism declared": "s",
    "adds DP noise": "D",
    "trains nothing": "X",
}
Ends = tuple[float, float]
_DASHES = (0, (4, 3))
_REST = "#9aa3ad"  # the others' grey, in the trade-off


def tradeoff_svg(data: ReportData, name: str) -> str:
    """Return the trade-off for a screen and for a phone, the labels placed for each.

    Args:
        data: At least one run, under one scenario; all with their utility.
        name: Distinguishes ids from those of the page's other figures.
    """
    what = tradeoff_alt(data)
    narrow = narrow_svg(tradeoff_plot(data, narrow=True), name, what)
    return to_svg(tradeoff_plot(data), name, what) + narrow


def tradeoff_alt(data: ReportData) -> str:
    """Say what :func:`tradeoff_plot` shows, for those who do not see it."""
    return f"Utility against leakage of each run. {'. '.join(_run_texts(data))}."


def tradeoff_plot(data: ReportData, *, narrow: bool = False) -> Figure:
    """Draw utility against leakage, one point with both intervals for each run."""
    audits = data.audits
    with house_style():
        many = len(audits) > MOST_RUNS  # labels would cover the marks
        lines = MOST_RUNS if narrow else MOST_RUNS // 2 + 1
        height = (4.8 if narrow else 4.6) + 0.17 * lines * many
        figure = new_figure(NARROW if narrow else 7.6, height)
        axes = figure.subplots()
        light_grid(axes)
        points, crosses, paints = [], [], _paints(data)
        for audit, paint in zip(audits, paints, strict=True):
            leak, local = audit.auroc, audit.measured_utility.local
            _cross(axes, leak, local, paint, _MARKERS[privacy_sort(audit)])
            points.append((leak.value, local.value))
            crosses.append((ends(leak), ends(local)))
        _tradeoff_axes(axes, data, crosses)
        handles = _tradeoff_handles(data)
        if many:
            handles = [*_run_handles(data, paints), *handles]
            figure.legend(
                handles=handles, loc="outside upper left", ncols=1 if narrow else 2
            )
        else:
            columns = 2 if narrow else 5
            figure.legend(handles=handles, loc="outside upper center", ncols=columns)
        if narrow:
            axes.set_xlabel(axes.get_xlabel().replace("   ", "\n"))
        labels = [
            "" if many else fill(one.label, 22) if narrow else shortened(one.label)
            for one in data.runs
        ]
        label_points(figure, axes, points, labels, crosses)
        for (x, y), text in zip(points, _run_texts(data), strict=True):
            spot(axes, x, y, text)
    return figure


def _paints(data: ReportData) -> list[str]:
    """Return each run's colour: grey for those that other pictures leave out."""
    drawn = data.drawn.runs
    return [colour(drawn.index(one)) if one in drawn else _REST for one in data.runs]


def _run_texts(data: ReportData) -> list[str]:
    return [
        f"{value_text(one.label, 'AUROC', one.audit.auroc)}; "
        f"{one.audit.measured_utility.metric} on own classes "
        f"{one.audit.measured_utility.local}"
        for one in data.runs
    ]


def _cross(axes: Axes, x: Estimate, y: Estimate, paint: str, marker: str) -> None:
    axes.errorbar(
        x.value,
        y.value,
        xerr=errors(x),
        yerr=errors(y),
        fmt=marker,
        color=paint,
        markersize=8,
        markeredgecolor="white",
        markeredgewidth=0.8,
        elinewidth=0.8 if paint == _REST else 1.3,
        zorder=2 if paint == _REST else 3,
    )


def _tradeoff_axes(
    axes: Axes, data: ReportData, crosses: Sequence[tuple[Ends, Ends]]
) -> None:
    untrained_rates = (audit.measured_utility.zero_shot for audit in data.audits)
    zero_shots = sorted({rate.value for rate in untrained_rates if rate is not None})
    axes.set_xlim(*_room([0.48, 0.56, *(end for x, _ in crosses for end in x)]))
    axes.set_ylim(*_room([*zero_shots, *(end for _, y in crosses for end in y)]))
    axes.axvline(0.5, color=INK, linewidth=1, zorder=1)
    for value in zero_shots:
        axes.axhline(value, color=FAINT, linewidth=1, linestyle=_DASHES, zorder=1)
    axes.set_xlabel("Leakage: AUROC of the attack   (0.5: chance; right: leaks more)")
    axes.set_ylabel(f"Utility: {data.metric} on a client's\nown classes   (up: better)")


def _room(values: Sequence[float]) -> Ends:
    """Return limits with some room around the values."""
    margin = 0.07 * (max(values) - min(values)) + 0.002
    return min(values) - margin, max(values) + margin


def _run_handles(data: ReportData, paints: Sequence[str]) -> list[Line2D]:
    """Return what names the runs that stand out, and what the others are."""
    entries = [
        (paint, shortened(one.label))
        for one, paint in zip(data.runs, paints, strict=True)
        if paint != _REST
    ]
    return [
        Line2D([], [], color=paint, marker="o", linestyle="", label=label)
        for paint, label in [*entries, (_REST, "other runs")]
    ]


def _tradeoff_handles(data: ReportData) -> list[Line2D]:
    sorts = {privacy_sort(audit) for audit in data.audits}
    entries = [
        Line2D([], [], color=FAINT, marker=marker, linestyle="", label=sort)
        for sort, marker in _MARKERS.items()
        if sort in sorts
    ]
    if any(a.measured_utility.zero_shot is not None for a in data.audits):
        line = Line2D([], [], color=FAINT, linestyle=_DASHES, label=data.untrained)
        entries.append(line)
    return [*entries, Line2D([], [], color=INK, label="random guessing")]
