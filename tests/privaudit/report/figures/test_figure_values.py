import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from privaudit.auditing.audit import Audit
from privaudit.report.figures.figure_style import house_style, new_figure, to_svg
from privaudit.report.figures.figure_values import spot
from privaudit.report.figures.row_figures import attacks_plot
from privaudit.report.page import render_report
from privaudit.report.report_data import ReportData
from tests.privaudit.made_audits import (
    make_audit,
    make_claimed,
    make_watched,
    make_writer,
)


def test_a_spot_is_an_element_with_a_title() -> None:
    with house_style():
        figure = new_figure(3.0, 2.0)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1])
        limits = axes.get_xlim(), axes.get_ylim()
        spot(axes, 0.5, 0.5, 'a <b> & "c"')
        outside = new_figure(3.0, 2.0).subplots()
        outside.plot([0, 1], [0, 1])
        spot(outside, 0.5, 7, "far away")
    assert (outside.get_xlim(), outside.get_ylim()) == limits
    assert (axes.get_xlim(), axes.get_ylim()) == limits
    svg = to_svg(figure, "name", "alt").replace(' xmlns="http', ' title="http')
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "group"
    (value,) = [one for one in root.iter() if one.get("class") == "value"]
    assert (value.tag, value.get("role")) == ("g", "img")
    assert (value[0].tag, value[0].text) == ("title", 'a <b> & "c"')
    assert value[-1].get("style") == "fill-opacity:0"


def test_a_picture_without_spots_is_one_image() -> None:
    with house_style():
        figure = new_figure(3.0, 2.0)
        figure.subplots().plot([0, 1])
    assert ElementTree.fromstring(to_svg(figure, "n", "")).get("role") == "img"


def test_every_attack_of_every_run_has_a_value() -> None:
    audits = [make_audit(), make_audit("coop", seed=4)]
    figure = attacks_plot(ReportData.of(audits))
    assert figure is not None
    svg = to_svg(figure, "attacks", "")
    labels = re.findall(r'class="value" role="img"><title>([^<]*)<', svg)
    assert labels == [
        f"{name}, {trainer}: AUROC {leak.auroc}"
        for trainer, audit in zip(("promptfl", "coop"), audits, strict=True)
        for name, leak in audit.results.items()
    ]


@pytest.mark.parametrize("make", [make_audit, make_watched, make_claimed, make_writer])
def test_every_picture_on_a_page_has_values_and_is_described_in_numbers(
    make: Callable[[], Audit],
) -> None:
    html = render_report([make()])
    pictures = re.findall(r"<svg role.*?</svg>", html, re.DOTALL)
    assert len(pictures) >= 5
    for picture in pictures:
        assert 'class="value"' in picture
        label = re.findall(r'<svg role="group" aria-label="([^"]*)"', picture)[0]
        assert re.search(r"\d\.\d\d", label)
