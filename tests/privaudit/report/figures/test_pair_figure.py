from dataclasses import replace
from xml.etree import ElementTree

import numpy as np

from privaudit.report.figures.figure_style import to_svg
from privaudit.report.figures.figures import tradeoff_plot
from privaudit.report.figures.roc_figure import roc_plot
from privaudit.report.figures.row_figures import (
    client_plot,
    closeness_plot,
    server_plot,
)
from privaudit.report.report_data import ReportData
from tests.privaudit.made_audits import make_audit, make_writer
from tests.privaudit.report.figures.test_figures import drawn


def test_figures_are_whole_xml_and_the_same_every_time() -> None:
    audits = [make_writer(), make_writer("fedrand", seed=3)]
    for plot in (closeness_plot, server_plot):
        pictures = []
        for _ in range(2):
            figure = plot(ReportData.of(audits))
            assert figure is not None
            pictures.append(to_svg(figure, "name", "what"))
        assert pictures[0] == pictures[1]
        ElementTree.fromstring(pictures[0])


def test_runs_in_which_nothing_was_estimated_are_left_out() -> None:
    estimated, read_off = make_writer("fedrand"), make_writer(closeness=False)
    figure = closeness_plot(ReportData.of([read_off, estimated]))
    assert figure is not None
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == ["fedrand"]
    assert closeness_plot(ReportData.of([read_off])) is None
    assert server_plot(ReportData.of([replace(estimated, parts={})])) is None


def test_own_and_other_clients_have_a_mark_each() -> None:
    figure = closeness_plot(ReportData.of([make_writer("fedrand")]))
    assert figure is not None
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
        figure = drawn(plot, [audit])
        legend = figure.axes[0].get_legend() or figure.legends[0]
        assert [text.get_text() for text in legend.get_texts()][:2] == [
            "max-renyi, clients' models",
            "max-renyi, server's own model",
        ]


def test_the_axis_says_what_use_is_measured_by() -> None:
    label = tradeoff_plot(ReportData.of([make_writer()])).axes[0].get_ylabel()
    assert label.startswith("Utility: ROUGE-L on a client's")
    label = tradeoff_plot(ReportData.of([make_audit()])).axes[0].get_ylabel()
    assert label.startswith("Utility: accuracy on a client's")
