import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from privaudit.auditing.audit import Audit
from privaudit.report.figures.curve_figures import roc_plot
from privaudit.report.figures.figure_style import new_figure, to_png, to_svg
from privaudit.report.figures.row_figures import (
    MOST_CLIENTS,
    attacks_alt,
    attacks_plot,
    client_plot,
    closeness_plot,
    server_plot,
)
from privaudit.report.figures.tradeoff_figure import label_points, tradeoff_plot
from privaudit.report.page import render_report
from privaudit.report.report_data import ReportData
from privaudit.statistics.estimate import Estimate
from tests.privaudit.made_audits import make_audit, make_writer

PLOTS = (tradeoff_plot, roc_plot, client_plot)
Plot = Callable[[ReportData], Figure | None]


def drawn(plot: Plot, audits: Sequence[Audit]) -> Figure:
    figure = plot(ReportData.of(audits))
    assert figure is not None
    return figure


def legend_of(figure: Figure) -> list[str]:
    legend = figure.axes[0].get_legend() or figure.legends[0]
    return [text.get_text().replace("\n", " ") for text in legend.get_texts()]


def rows_of(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


@pytest.fixture
def audits() -> list[Audit]:
    return [
        make_audit("zero-shot", shift=0.0, local=0.6, epsilons=(0.0, 0.0)),
        make_audit("promptfl", shift=0.6, seed=1),
        make_audit("a <$b$> & “c”", shift=0.3, noise=1.0, seed=2),
    ]


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("count", [1, 3])
def test_figures_are_whole_xml_and_the_same_every_time(
    plot: Plot, count: int, audits: list[Audit]
) -> None:
    first, second = (
        to_svg(drawn(plot, audits[:count]), "name", 'a "description" & more')
        for _ in range(2)
    )
    assert first == second
    root = ElementTree.fromstring(first)
    assert root.get("aria-label") == 'a "description" & more'
    assert "<text" in first  # not paths, which are large and no words
    assert "<style" not in first  # it would be the whole page's
    assert "<dc:date" not in first


@pytest.mark.parametrize("plot", PLOTS)
def test_ids_of_two_figures_on_one_page_differ(plot: Plot, audits: list[Audit]) -> None:
    def ids(svg: str) -> set[str]:
        return set(re.findall(r'\bid="([^"]+)"', svg))

    one, two = (to_svg(drawn(plot, audits), name, "") for name in ("one", "two"))
    assert ids(one)
    assert not ids(one) & ids(two)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', one)) <= ids(one)


def test_figures_have_no_title_that_repeats_the_caption(audits: list[Audit]) -> None:
    for plot in PLOTS:
        figure = drawn(plot, audits)
        assert not figure.get_suptitle()
        assert not any(axes.get_title() for axes in figure.axes)


def test_drawing_leaves_the_settings_of_others_alone(audits: list[Audit]) -> None:
    before = dict(matplotlib.rcParams)
    to_png(tradeoff_plot(ReportData.of(audits)))
    assert dict(matplotlib.rcParams) == before


def test_every_run_is_named_in_the_tradeoff(audits: list[Audit]) -> None:
    written = {
        text.get_text() for text in tradeoff_plot(ReportData.of(audits)).axes[0].texts
    }
    assert written == {"zero-shot", "promptfl", "a <$b$> & “c”"}


def test_the_rates_that_few_nonmembers_leave_open_are_shaded() -> None:
    audit = make_audit(candidates=120)
    figure, curve = drawn(roc_plot, [audit]), audit.headline.roc()
    axes = figure.axes[0]
    few, none, missed = (
        shade.get_extents().transformed(axes.transData.inverted())
        for shade in axes.patches
    )
    assert few.x1 == pytest.approx(10 / curve.nonmembers, rel=0.01)
    assert none.x1 == pytest.approx(1 / curve.nonmembers, rel=0.01)
    assert missed.y1 == pytest.approx(1 / curve.members, rel=0.01)
    assert legend_of(figure)[-2:] == [
        "unresolved: fewer than 10 false alarms expected",
        f"less than 1 of {curve.nonmembers} non-members, or than 1 of {curve.members} "
        "members",
    ]


def test_enough_nonmembers_leave_nothing_shaded() -> None:
    audit = make_audit(candidates=8, clients=1)
    assert roc_plot(ReportData.of([audit])).axes[0].get_xlim()[0] == pytest.approx(0.1)


def test_a_curve_stands_for_each_run_or_each_attack_of_one(audits: list[Audit]) -> None:
    assert legend_of(drawn(roc_plot, audits))[:2] == ["zero-shot", "promptfl"]
    alone = legend_of(drawn(roc_plot, audits[1:2]))
    assert alone[:3] == ["shadow", "loss-threshold", "chance"]


def test_the_average_stands_below_all_clients(audits: list[Audit]) -> None:
    figure = drawn(client_plot, audits)
    assert rows_of(figure) == ["client-0", "client-1", "client-2", "average"]
    assert figure.axes[0].yaxis_inverted()


def test_of_many_clients_those_with_most_pairs_are_drawn(audits: list[Audit]) -> None:
    pairs = {f"client-{c}": (c % 50 + 1, 2) for c in range(60)}
    every = {c: Estimate(0.1, 0.0, 0.2, pair, "made") for c, pair in pairs.items()}
    audit, headline = audits[0], replace(audits[0].headline)
    vars(headline)["by_client"], results = every, {"named": headline}
    *rows, last = rows_of(drawn(client_plot, [replace(audit, results=results)]))
    fewest = min(pairs[row] for row in rows)
    assert (len(rows), last) == (MOST_CLIENTS, "average")
    assert all(pair <= fewest for c, pair in pairs.items() if c not in rows)


def test_labels_of_crowded_points_do_not_overlap() -> None:
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    points = [(0.5 + 0.002 * k, 0.7 + 0.002 * k) for k in range(6)]
    axes.set(xlim=(0.4, 0.7), ylim=(0.5, 0.9))
    crosses = [((x - 0.05, x + 0.05), (y - 0.05, y + 0.05)) for x, y in points]
    label_points(
        figure, axes, points, [f"a run, number {k}" for k in range(6)], crosses
    )
    for text in axes.texts:
        text.get_window_extent()  # moves it to where it belongs
    boxes = [
        super(type(text), text).get_window_extent()  # the text without its arrow
        for text in axes.texts
    ]
    assert len(boxes) == 6
    for k, box in enumerate(boxes):
        for other in boxes[:k]:
            assert Bbox.intersection(box, other) is None
        assert axes.bbox.x0 <= box.x0
        assert box.x1 <= axes.bbox.x1


def test_pairs_are_whole_xml_and_the_same_every_time() -> None:
    audits = [make_writer(), make_writer("fedrand", seed=3)]
    for plot in (closeness_plot, server_plot):
        pictures = [to_svg(drawn(plot, audits), "name", "what") for _ in range(2)]
        assert pictures[0] == pictures[1]
        ElementTree.fromstring(pictures[0])


def test_runs_in_which_nothing_was_estimated_are_left_out() -> None:
    estimated, read_off = make_writer("fedrand"), make_writer(closeness=False)
    assert rows_of(drawn(closeness_plot, [read_off, estimated])) == ["fedrand"]
    assert closeness_plot(ReportData.of([read_off])) is None
    assert server_plot(ReportData.of([replace(estimated, parts={})])) is None


def test_own_and_other_clients_have_a_mark_each() -> None:
    figure = drawn(closeness_plot, [make_writer("fedrand")])
    for axes in figure.axes:
        low, high = axes.get_xlim()
        dots = [line for line in axes.lines if line.get_marker() in ("o", "s")]
        dots = [dot for dot in dots if not dot.get_gid()]  # of others it is a text
        marks = [np.asarray(dot.get_xdata(), dtype=float)[0] for dot in dots]
        assert len(marks) == 2
        assert all(low <= mark <= high for mark in marks)


def test_one_writing_runs_pictures_hold_clients_and_server_not_all_attacks() -> None:
    audit = make_writer()
    for plot in (roc_plot, client_plot):
        assert legend_of(drawn(plot, [audit]))[:2] == [
            "max-renyi, clients' models",
            "max-renyi, server's own model",
        ]


def test_the_axis_says_what_use_is_measured_by() -> None:
    label = tradeoff_plot(ReportData.of([make_writer()])).axes[0].get_ylabel()
    assert label.startswith("Utility: ROUGE-L on a client's")
    label = tradeoff_plot(ReportData.of([make_audit()])).axes[0].get_ylabel()
    assert label.startswith("Utility: accuracy on a client's")


SEVEN = ("loss-threshold", "shadow", "lira", "rmia", "confidence", "entropy", "other")


@pytest.mark.parametrize("runs", [1, 3])
def test_each_attack_has_a_row_with_its_n_and_each_run_a_dot(runs: int) -> None:
    audits = [make_audit(attacks=SEVEN, shift=0.1 * k) for k in range(runs)]
    figure = drawn(attacks_plot, audits)
    (axes,) = figure.axes
    rows = rows_of(figure)
    members, others = audits[0].auroc.n
    assert rows[:2] == [
        f"{name}\n3 clients, n = {members} + {others}" for name in SEVEN[:2]
    ]
    assert len(rows) == 7
    assert axes.yaxis_inverted()
    assert len(axes.containers) == runs


def test_counts_that_differ_between_runs_are_left_to_the_table() -> None:
    figure = drawn(attacks_plot, [make_audit(), make_audit(candidates=60)])
    assert rows_of(figure)[0] == "shadow\nn differs: see the table"


def test_one_attack_alone_needs_no_picture() -> None:
    assert attacks_plot(ReportData.of([make_audit(attacks=("shadow",))])) is None


def test_a_grid_of_attacks_is_left_to_its_table() -> None:
    assert len(rows_of(drawn(attacks_plot, [make_writer()]))) == 2


def test_an_attack_on_fewer_clients_is_noticed() -> None:
    audit, fewer = make_audit(), make_audit(clients=1)
    said = "Attacks with shadow models"
    assert said not in render_report([audit])
    results = {**audit.results, "lira": fewer.headline}
    assert said in render_report([audit, replace(audit, results=results)])


def test_the_picture_is_read_aloud_with_numbers() -> None:
    audit = make_audit()
    alt = attacks_alt(ReportData.of([audit]))
    for name, leak in audit.results.items():
        assert f"promptfl, {name}: {leak.auroc.value:.3f} [" in alt


def test_of_many_attacks_four_have_curves_and_the_page_says_so() -> None:
    audit = make_audit(attacks=SEVEN)
    assert legend_of(drawn(roc_plot, [audit]))[:5] == [*SEVEN[:4], "chance"]
    said = ReportData.of([audit]).undrawn
    assert said.startswith("The figures show the first 4 of 7 attacks")
    for audits in ([make_audit()], [audit, make_audit("coop")]):
        assert ReportData.of(audits).undrawn == ""
