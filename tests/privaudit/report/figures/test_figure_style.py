import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from privaudit.auditing.audit import Audit
from privaudit.report.figures.figure_style import (
    COLOURS,
    house_style,
    new_figure,
    small_svg,
    spot,
    to_svg,
)
from privaudit.report.figures.row_figures import attacks_plot
from privaudit.report.figures.tradeoff_figure import tradeoff_plot
from privaudit.report.page import render_report
from privaudit.report.report_data import MOST_RUNS, ReportData
from tests.privaudit.made_audits import (
    make_audit,
    make_claimed,
    make_watched,
    make_writer,
)

_WHOLE = '<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{}</svg>'


def shrunk(inside: str) -> str:
    small = small_svg(_WHOLE.format(inside), "n", "")
    return small[small.index(">") + 1 : -len("</svg>")]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("M 1.04 2 \nL 3.16 2 \nL 3.16 5.55 \nz\n", "M1 2H3.2V5.5z"),
        ("M 1 2 L 1.01 2.01", "M1 2L1 2"),  # a dot stays one
        ("M 1 2 L 1.01 2.01 L 3 4 L 3.01 4", "M1 2L1 2L3 4"),
        ("M 0 0 C 1 2 3 4 5.55 -0.04 L 5.6 7", "M0 0C1 2 3 4 5.5 0L5.6 7"),
    ],
)
def test_paths_have_tenths_and_one_number_for_level_and_upright_lines(
    path: str, expected: str
) -> None:
    drawn = re.findall(' d="([^"]*)"', shrunk(f'<path d="{path}"/>'))
    assert drawn == [expected]


def test_only_what_is_referred_to_keeps_its_id() -> None:
    inside = '<g id="a"><defs id="d"><path id="m"/></defs><g><use href="#m"/></g></g>'
    assert shrunk(inside) == '<defs><path id="n-m" /></defs><use href="#n-m" />'


def test_text_keeps_its_place_and_turn_and_no_font_that_all_have() -> None:
    style = "font-size: 9px; font-family: 'DejaVu Sans'; text-anchor: end; fill: #222"
    inside = f'<text style="{style}" x="1.26" y="2" transform="rotate(-0 1 2)">a</text>'
    assert (
        shrunk(inside)
        == '<text style="text-anchor:end;fill:#222" x="1.3" y="2">a</text>'
    )
    inside = '<text transform="translate(3.44 4)">b</text>'
    assert shrunk(inside) == '<text x="3.4" y="4">b</text>'
    inside = '<text transform="rotate(-90 3.44 4)">c</text>'
    assert shrunk(inside) == '<text transform="rotate(-90 3.4 4)">c</text>'


def test_a_label_with_a_halo_is_text_with_an_edge_and_stays_so_elsewhere() -> None:
    plot = tradeoff_plot(ReportData.of([make_audit()]))
    (label,) = plot.axes[0].texts
    svg = to_svg(plot, "name", "")
    assert re.search(r"<text [^>]*paint-order:stroke[^>]*>promptfl</text>", svg)
    assert label.get_path_effects()


def test_of_many_runs_the_worst_are_drawn_under_the_names_that_they_have() -> None:
    counts = range(MOST_RUNS + 3)
    data = ReportData.of([make_audit(rate=n, seed=n, shift=0.1 * n) for n in counts])
    drawn = data.drawn.runs
    assert len(drawn) == MOST_RUNS == len(COLOURS)
    assert data.runs[-1] in drawn
    assert [one.label for one in drawn] == [
        f"promptfl, rate {n}" for n, one in enumerate(data.runs) if one in drawn
    ]
    plot = tradeoff_plot(data)
    assert not any(text.get_text() for text in plot.axes[0].texts)
    entries = [text.get_text() for text in plot.legends[0].get_texts()]
    assert [one for one in entries if one.startswith("promptfl")] == [
        one.label for one in drawn
    ]
    assert "other runs" in entries
    assert data.undrawn.startswith(f"The figures show the first {MOST_RUNS} of 10")
    few = ReportData(data.runs[:MOST_RUNS])
    assert few.drawn.runs == few.runs


@pytest.mark.filterwarnings("ignore:Glyph")  # the font has no such characters
@pytest.mark.parametrize("name", ["a\x08b", "a\ufffeb"])
def test_what_xml_forbids_in_a_name_is_shown_as_unknown(name: str) -> None:
    with house_style():
        figure = new_figure(3.0, 2.0)
        figure.subplots().set_xlabel(name)
    svg = to_svg(figure, "n", name)
    assert ">a\ufffdb</text>" in svg
    assert ElementTree.fromstring(svg).get("aria-label") == "a\ufffdb"


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
        figure.axes[0].text(0.5, 0.5, "a & b")
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
