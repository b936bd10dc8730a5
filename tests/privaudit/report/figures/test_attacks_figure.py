from dataclasses import replace

import pytest

from privaudit.report.figures.roc_figure import roc_plot
from privaudit.report.figures.row_figures import attacks_alt, attacks_plot
from privaudit.report.page import render_report
from privaudit.report.report_data import ReportData
from tests.privaudit.made_audits import make_audit, make_writer

SEVEN = ("loss-threshold", "shadow", "lira", "rmia", "confidence", "entropy", "other")


@pytest.mark.parametrize("runs", [1, 3])
def test_each_attack_has_a_row_with_its_n_and_each_run_a_dot(runs: int) -> None:
    audits = [make_audit(attacks=SEVEN, shift=0.1 * k) for k in range(runs)]
    figure = attacks_plot(ReportData.of(audits))
    assert figure is not None
    (axes,) = figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    members, others = audits[0].auroc.n
    assert rows[:2] == [
        f"{name}\n3 clients, n = {members} + {others}" for name in SEVEN[:2]
    ]
    assert len(rows) == 7
    assert axes.yaxis_inverted()
    assert len(axes.containers) == runs


def test_counts_that_differ_between_runs_are_left_to_the_table() -> None:
    figure = attacks_plot(ReportData.of([make_audit(), make_audit(candidates=60)]))
    assert figure is not None
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows[0] == "shadow\nn differs: see the table"


def test_one_attack_alone_needs_no_picture() -> None:
    assert attacks_plot(ReportData.of([make_audit(attacks=("shadow",))])) is None


def test_a_grid_of_attacks_is_left_to_its_table() -> None:
    figure = attacks_plot(ReportData.of([make_writer()]))
    assert figure is not None
    assert len(figure.axes[0].get_yticklabels()) == 2


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
    legend = roc_plot(ReportData.of([audit])).axes[0].get_legend()
    assert legend is not None
    named = [text.get_text() for text in legend.get_texts()]
    assert named[:5] == [*SEVEN[:4], "chance"]
    said = ReportData.of([audit]).undrawn
    assert said.startswith("The figures show the first 4 of 7 attacks")
    for audits in ([make_audit()], [audit, make_audit("coop")]):
        assert ReportData.of(audits).undrawn == ""
