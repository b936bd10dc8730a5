import numpy as np
import pytest
from matplotlib.patches import Rectangle

from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.report.figures.epsilon_figure import epsilon_alt, epsilon_plot
from privaudit.report.report_data import ReportData
from privaudit.report.tables.one_run_table import bound_rows, one_run_sentences
from privaudit.report.wording import TableCell
from tests.privaudit.made_audits import make_audit, make_claimed


def test_the_verdict_comes_first_and_then_what_the_canaries_were() -> None:
    audit = make_claimed()
    found = audit.part(ONE_RUN)
    assert found is not None
    verdict, canaries = one_run_sentences(audit)
    assert verdict == found.verdict.sentence
    assert verdict.startswith("UNDERPOWERED: claimed is epsilon 8")
    assert canaries == (
        "Canaries: crafted in gradient space: no real record is as strong. "
        "Scored by: movement against its gradient."
    )


def test_only_the_bound_of_the_verdict_is_named_beforehand() -> None:
    data = ReportData.of([make_claimed(), make_audit(), make_audit("coop")])
    first, second = bound_rows(data)
    assert [
        cell.note for _, cell, *_ in (first, second) if isinstance(cell, TableCell)
    ] == [
        "named beforehand",
        "",
    ]
    assert first[2:5] == ("0.77", "3.50", "95 %")
    assert [">1e-5<" in str(first[5]), ">101 + 99<" in str(first[6])] == [True, True]
    assert first[7] == "any"
    assert "refutes nothing" in str(second[7])


def test_audits_without_canaries_say_nothing() -> None:
    audit = make_audit()
    assert one_run_sentences(audit) == []
    assert not bound_rows(ReportData.of([audit]))
    assert epsilon_plot(ReportData.of([audit])) is None


def test_shown_claimed_certified_and_ceiling_are_drawn_where_they_are() -> None:
    figure = epsilon_plot(
        ReportData.of([make_claimed(0.77), make_claimed(0.3, claimed=0.1)])
    )
    assert figure is not None
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [bar.get_width() for bar in bars] == [3.5, 0.77, 3.5, 0.3]
    marks = [
        line for line in axes.lines if not line.get_gid()
    ]  # of others it is a text
    lines = [(line.get_label(), np.asarray(line.get_xdata())) for line in marks]
    drawn = sorted((name, x[0]) for name, x in lines if len(x) == 1)
    assert drawn == [
        ("certified: at most", 1.1),
        ("certified: at most", 9.0),
        ("claimed", 0.1),
        ("claimed", 8.0),
    ]
    assert axes.get_xlim()[1] > 9


@pytest.mark.parametrize("claimed", [None, 0.1, 500.0])
def test_the_axis_reaches_every_promise(claimed: float | None) -> None:
    figure = epsilon_plot(ReportData.of([make_claimed(claimed=claimed)]))
    assert figure is not None
    assert figure.axes[0].get_xlim()[1] > max(3.5, claimed or 0)


def test_the_picture_is_read_aloud_with_numbers() -> None:
    assert epsilon_alt(ReportData.of([make_claimed(claimed=None)])) == (
        "Epsilon from one run. dp-fpl: shown 0.77, ceiling 3.50, claimed none, "
        "certified none."
    )
