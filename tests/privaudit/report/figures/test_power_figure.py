import numpy as np
import pytest

from privaudit.core.errors import ConfigError
from privaudit.report.figures.figure_style import to_png, to_svg
from privaudit.report.figures.power_figure import power_plot
from privaudit.statistics.power import AurocDesign, DifferenceDesign, required_n


def test_each_design_is_a_line_with_its_number() -> None:
    designs: dict[str, AurocDesign | DifferenceDesign] = {
        "AUROC 0.55": AurocDesign(0.55),
        "rise 0.1": DifferenceDesign(0.1),
    }
    figure = power_plot(designs)
    (axes,) = figure.axes
    assert axes.get_legend_handles_labels()[1] == [
        f"{label}: {required_n(design)}" for label, design in designs.items()
    ]
    dots = [
        np.ravel(line.get_xdata())[0] for line in axes.lines if line.get_marker() == "o"
    ]
    assert dots == [required_n(design) for design in designs.values()]
    assert "<svg" in to_svg(figure, "power", "Power over records")
    assert to_png(figure) == to_png(power_plot(designs))


def test_no_design_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a design"):
        power_plot({})
