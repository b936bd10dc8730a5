"""How figures look: one palette, one font, the same bytes for the same numbers.

On a page a figure is an <svg> element as small as it can be read: text stays text, and
what nobody sees is left out: ids that nothing refers to, groups around nothing, digits
below a tenth of a point. Values show when a point is pointed at, or reached by keyboard: a
spot is an invisible marker that carries its text as an id; :func:`as_value` makes each one
an element with a title, which any browser shows and a screen reader reads.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from privaudit.core.errors import ConfigError
from privaudit.core.formatting import xml_text
from privaudit.runs.own_files import make_parent, write_output
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


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Distinguishable with any common colour blindness.

Source: Okabe and Ito, "Color universal design", 2008, without the yellow, which is too
light for lines on white.
"""

NARROW = 4.0  # inches, that 9 points be read on a phone
INK, FAINT, PALE, GREY = "#222222", "#6b6b6b", "#e9ecef", "#d3d8de"
_STYLES = ("-", (0.0, (5.0, 2.0)), (0.0, (1.5, 1.5)), (0.0, (6.0, 2.0, 1.5, 2.0)))

FONTS = "'DejaVu Sans',Verdana,sans-serif"
"""Verdana, which phones and desks without DejaVu Sans have, is as wide to a hundredth."""

HALO = "halo"
"""The id of a group whose text keeps a white edge, where it stands on other marks."""

_SPACE = "http://www.w3.org/2000/svg"
_SIZE = "9px"  # the house style's, which the element has for all its text
_EDGE = "paint-order:stroke;stroke:#fff;stroke-width:2.5px;stroke-linejoin:round"
_ROUND = (
    "stroke-linejoin:round;stroke-linecap:butt"  # matplotlib's for all that it draws
)
_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')
_LEFT_OUT = ("metadata", "style")
_INHERITED = {
    "font-size": _SIZE,
    "font-family": "'DejaVu Sans'",
    "text-anchor": "start",
    "stroke-opacity": "1",
}

_LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is everywhere
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",  # text: paths are large, and no reader finds a word in them
    "svg.hashsalt": "privaudit",  # else ids are random
    "text.parse_math": False,  # names may hold dollar signs
}


def house_style() -> AbstractContextManager[None]:
    """Draw in the house style; what was set before comes back."""
    return matplotlib.rc_context(_LOOK)


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of a size in inches, not known to pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colour(index: int) -> str:
    """Return a series' colour."""
    return COLOURS[index % len(COLOURS)]


def line_style(index: int) -> str | tuple[float, tuple[float, ...]]:
    """Return a series' dashes, so that no line is known by its colour alone."""
    return _STYLES[index % len(_STYLES)]


def light_grid(axes: Axes) -> None:
    """Draw a grid that stays behind what is shown."""
    axes.grid(True, color=PALE, linewidth=0.8)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name rows at 0, 1, 2, ... from top to bottom, without ticks and lines."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def to_svg(figure: Figure, name: str, description: str) -> str:
    """Return an <svg> element for a page: no prolog, no date, ids of its own.

    Its name is in the ids; the description is read aloud in the picture's place.
    """
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with house_style(), _halos_by_name(figure):
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata=nothing)  # savefig would draw it all twice
    return small_svg(buffer.getvalue(), name, description)


@contextmanager
def _halos_by_name(figure: Figure) -> Iterator[None]:
    """Name text with a halo, which else were drawn as paths, twice each letter."""
    texts = [
        text for axes in figure.axes for text in axes.texts if text.get_path_effects()
    ]
    effects = [text.get_path_effects() for text in texts]
    for text in texts:
        text.set_gid(HALO)
        text.set_path_effects([])
    yield
    for text, before in zip(texts, effects, strict=True):
        text.set_path_effects(before)


def both_widths(figure: Figure, name: str, description: str) -> str:
    """Return a figure twice: for a screen, and as narrow as a phone.

    The style sheet shows one of them. What scrolled would hide what stands farthest to
    the right, which is what leaks most.
    """
    wide = to_svg(figure, name, description)
    _make_narrow(figure)
    return wide + narrow_svg(figure, name, description)


def narrow_svg(figure: Figure, name: str, description: str) -> str:
    """Return a figure that was drawn narrow, as the second of two."""
    svg = to_svg(figure, f"{name}-narrow", description)
    return svg.replace("<svg", '<svg class="narrow"', 1)


def _make_narrow(figure: Figure) -> None:
    """Give a figure a phone's width; what stood side by side stands in lines."""
    _, height = figure.get_size_inches()
    lines = sum(len(legend.get_texts()) for legend in figure.legends)
    figure.set_size_inches(NARROW, height + 0.1 * lines)
    with house_style():
        for legend in list(figure.legends):
            texts = [text.get_text() for text in legend.get_texts()]
            handles, labels = figure.axes[0].get_legend_handles_labels()
            drawn = handles if labels == texts else filter(None, legend.legend_handles)
            legend.remove()
            figure.legend(drawn, texts, loc="outside upper left")
        for axes in figure.axes:
            axes.set_xlabel(axes.get_xlabel().replace("   (", "\n("))


def to_png(figure: Figure) -> bytes:
    """Return a PNG without a date or a version."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def to_pdf(figure: Figure) -> bytes:
    """Return a PDF without a date or a version, its texts as texts."""
    buffer, nothing = io.BytesIO(), ("Creator", "Producer", "CreationDate")
    with house_style(), matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(buffer, format="pdf", metadata=dict.fromkeys(nothing))
    return buffer.getvalue()


def write_figure(figure: Figure, path: Path, name: str, description: str) -> None:
    """Write a figure as its file's name ends: SVG, PDF or PNG.

    Raises:
        ConfigError: It ends otherwise.
        StorageError: The file cannot be written.
    """
    writers: dict[str, Callable[[Figure], bytes]] = {
        ".svg": lambda drawn: to_svg(drawn, name, description).encode(),
        ".pdf": to_pdf,
        ".png": to_png,
    }
    if path.suffix not in writers:
        raise ConfigError(
            f"A figure was requested in {path.name}. Give a file name that ends with "
            ".svg, .pdf or .png."
        )
    content = writers[path.suffix](figure)
    make_parent(path)
    write_output(path, content)


def small_svg(drawn: str, name: str, description: str) -> str:
    """Return matplotlib's SVG as an element for a page: no prolog, ids of its own.

    Args:
        drawn: A whole file, with text as text; what XML forbids is shown as unknown.
        name: Distinguishes its ids from those of the page's other figures.
        description: Read aloud in the picture's place.
    """
    drawn, description = map(xml_text, (drawn, description))
    root = ElementTree.fromstring(drawn[drawn.index("<svg") :])
    _shrink(root, frozenset(_REFERENCE.findall(drawn)), name, digits=1)
    has_values = any(part.get("class") == "value" for part in root.iter())
    attributes = {
        "role": "group" if has_values else "img",  # an img's parts are not read
        "aria-label": description,
        "xmlns": _SPACE,
        "viewBox": root.get("viewBox", ""),
        "font-family": FONTS,
        "font-size": _SIZE,
        "style": _ROUND,
    }
    root.attrib.clear()
    root.attrib.update(attributes)
    return ElementTree.tostring(root, encoding="unicode")


def _shrink(one: Element, referenced: frozenset[str], name: str, digits: int) -> None:
    """Rewrite an element and what is in it."""
    one.tag = one.tag.removeprefix(f"{{{_SPACE}}}")
    one.text = one.text if one.tag in ("text", "title") else None
    one.tail = None
    mark = one.attrib.pop("id", "")
    _rewrite(one, name, digits)
    if mark in referenced:
        one.set("id", f"{name}-{mark}")
    digits = 2 if one.tag == "defs" else digits  # marks are drawn in tenths
    parts = [part for part in one if part.tag.rpartition("}")[2] not in _LEFT_OUT]
    for part in parts:
        _shrink(part, referenced, name, digits)
    one[:] = [kept for part in parts for kept in _unwrapped(part)]
    if mark == HALO:
        for text in one.iter("text"):
            text.set("style", f"{text.get('style', '')};{_EDGE}".lstrip(";"))
    as_value(one, mark)


def _unwrapped(one: Element) -> Iterator[Element]:
    """Yield what stays of an element: its parts, where it says nothing itself."""
    if one.tag in ("g", "defs") and not len(one):
        return
    if one.tag == "g" and not one.attrib:
        yield from one
    else:
        yield one


def _rewrite(one: Element, name: str, digits: int) -> None:
    """Shorten an element's attributes."""
    found = dict(one.attrib)
    one.attrib.clear()
    for key, value in found.items():
        key = key.rpartition("}")[2]  # xlink:href is href in a page
        if key == "d":
            value = _short_path(value, digits)
        elif key == "style":
            value = _short_style(value)
        elif key in ("x", "y", "width", "height"):
            value = _short(float(value.removesuffix("pt")), digits)
        elif key == "transform":
            one.attrib.update(_placed(value))
            continue
        if key in ("href", "clip-path"):
            value = value.replace("#", f"#{name}-")
        if value:
            one.set(key, value)


def _placed(transform: str) -> dict[str, str]:
    """Return a text's turn, or its place; a turn by nothing is none."""
    kind, _, numbers = transform.rstrip(")").partition("(")
    if "(" in numbers or kind not in ("rotate", "translate"):
        return {"transform": transform}
    values = [float(value) for value in numbers.split()]
    if kind == "translate":
        return dict(zip("xy", (_short(value, 1) for value in values), strict=True))
    angles = " ".join(_short(value, 1) for value in values)
    return {"transform": f"rotate({angles})"} if values[0] else {}


def _short_style(style: str) -> str:
    """Return declarations without spaces, and without what is inherited."""
    pairs = [part.split(":", 1) for part in style.split(";") if ":" in part]
    declarations = {name.strip(): value.strip() for name, value in pairs}
    return ";".join(
        f"{name}:{value}"
        for name, value in declarations.items()
        if _INHERITED.get(name) != value
    )


def _short(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return {"-0": "0", "": "0"}.get(text, text)


def _short_path(path: str, digits: int) -> str:
    """Return a path with fewer digits; level and upright lines say one number each."""
    steps: list[tuple[str, str]] = []
    x = y = ""
    for command, numbers in re.findall(r"([MLCQz])([^MLCQz]*)", path):
        values = [_short(float(value), digits) for value in numbers.split()]
        if command != "L":
            steps.append((command, " ".join(values)))
        elif values[1] == y and values[0] != x:
            steps.append(("H", values[0]))
        elif values[0] == x and values[1] != y:
            steps.append(("V", values[1]))
        elif (
            values != [x, y] or steps[-1][0] == "M"
        ):  # a dot is a line to its own start
            steps.append(("L", " ".join(values)))
        x, y = values[-2:] or (x, y)
    return "".join(f"{command}{numbers}" for command, numbers in steps)
