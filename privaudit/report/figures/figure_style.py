"""How figures look: one palette, one font, the same bytes for the same numbers."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from privaudit.core.errors import ConfigError
from privaudit.core.storage import storage_errors, write_bytes
from privaudit.report.figures.figure_values import has_values, told_values

COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
"""Told apart with any common colour blindness.

Source: Okabe and Ito, "Color universal design", 2008, without the yellow, which is too
light for lines on white.
"""

NARROW = 4.0  # inches, that 9 points be read on a phone
INK, FAINT, PALE, GREY = "#222222", "#6b6b6b", "#e9ecef", "#d3d8de"
_STYLES = ("-", (0.0, (5.0, 2.0)), (0.0, (1.5, 1.5)), (0.0, (6.0, 2.0, 1.5, 2.0)))

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
    "svg.fonttype": "path",  # no viewer needs the font
    "svg.hashsalt": "privaudit",  # else ids are random
    "text.parse_math": False,  # names may hold dollar signs
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style; what was set before comes back."""
    with matplotlib.rc_context(_LOOK):
        yield


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

    Args:
        figure: Drawn in the house style.
        name: Distinguishes its ids from those of the page's other figures.
        description: Read aloud in the picture's place.
    """
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with house_style():
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata=nothing)  # savefig would draw it all twice
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = told_values(svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    # A hundredth of a point is seen by nobody, and is half of a page's size.
    svg = re.sub(r' (?:d|x|y)="[^"]*"', _rounded, svg)
    svg = re.sub(r"\n\s+", "\n", svg)
    label = _escaped(description)
    role = "group" if has_values(svg) else "img"  # an img's parts are not read
    return svg.replace("<svg", f'<svg role="{role}" aria-label="{label}"', 1)


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


def to_png(figure: Figure, dots_per_inch: int = 150) -> bytes:
    """Return a PNG without a date or a version."""
    buffer = io.BytesIO()
    with house_style():
        figure.savefig(
            buffer, format="png", dpi=dots_per_inch, metadata={"Software": None}
        )
    return buffer.getvalue()


def write_figure(figure: Figure, path: Path, name: str, description: str) -> None:
    """Write a figure as SVG, or as PNG if the file's name ends so.

    Raises:
        ConfigError: It ends otherwise.
        StorageError: The file cannot be written.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(
            f"A figure was requested in {path.name}. Give a file name that ends with "
            ".svg or .png."
        )
    svg = path.suffix == ".svg"
    content = to_svg(figure, name, description).encode() if svg else to_png(figure)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)


def _rounded(path: re.Match[str]) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])


def _escaped(text: str) -> str:
    for sign, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot")):
        text = text.replace(sign, f"&{name};")
    return text
