import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND
from privaudit.auditing.parts.one_run import ONE_RUN
from privaudit.report.figures.curve_figures import rounds_alt, rounds_plot
from privaudit.report.figures.figure_style import colour
from privaudit.report.figures.row_figures import epsilon_alt, epsilon_plot
from privaudit.report.report_data import ReportData
from privaudit.report.tables.parts import (
    bound_rows,
    corrected,
    one_run_sentences,
    round_sentences,
)
from privaudit.report.wording import TableCell
from privaudit.statistics.comparisons import p_above_chance
from tests.privaudit.made_audits import make_audit, make_claimed, make_watched
from tests.privaudit.report.figures.test_figures import drawn


def test_the_first_round_above_chance_is_named_and_the_largest_is_no_estimate() -> None:
    assert round_sentences(make_watched()) == [
        "update-alignment, this round's uploads alone: first above 0.5 in round 4, "
        "Holm-corrected over 5 rounds (p < 0.001). The largest of 5 rounds, 0.620 in "
        "round 6, is a maximum, not an unbiased estimate."
    ]


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_round_must_stand_out_among_as_many_as_there_are(count: int) -> None:
    """0.551 [0.501, 0.601] alone has p = 0.046: enough of one round, not of two."""
    (leakage,) = make_watched(by_round=[0.551] + [0.5] * (count - 1)).part(
        LEAKAGE_BY_ROUND
    )
    assert corrected(leakage)[0] == pytest.approx(
        count * p_above_chance(leakage.by_round[0])
    )
    assert (corrected(leakage)[0] <= 0.05) == (count == 1)


def test_where_no_round_stands_out_none_is_named() -> None:
    (sentence,) = round_sentences(make_watched(by_round=[0.5, 0.49, 0.53]))
    assert (
        "no round can be named, Holm-corrected over 3 rounds (smallest p = 0."
        in sentence
    )


def test_audits_that_did_not_ask_say_nothing() -> None:
    audit = make_audit()
    assert round_sentences(audit) == []
    assert rounds_plot(ReportData.of([audit])) is None


@pytest.mark.parametrize("count", [1, 2])
def test_each_run_has_a_panel_with_lines_and_bands(count: int) -> None:
    audits = [make_watched(), make_watched("coop", by_round=(0.6, 0.7))][:count]
    figure = drawn(rounds_plot, audits)
    assert len(figure.axes) == count
    lines = [line for line in figure.axes[0].lines if np.size(line.get_xdata()) == 5]
    assert [to_hex(line.get_color()) for line in lines] == [colour(0).lower()]
    (band,) = figure.axes[0].collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.45, 0.67))


def test_the_picture_is_read_aloud_with_numbers() -> None:
    alt = rounds_alt(ReportData.of([make_watched()]))
    assert "promptfl, update-alignment: 0.500 [0.450, 0.550], n = 200 + 200" in alt
    assert "0.580 [0.530, 0.630], n = 200 + 200 in round 8" in alt


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
    cells = [cell for _, cell, *_ in (first, second) if isinstance(cell, TableCell)]
    assert [cell.note for cell in cells] == ["named beforehand", ""]
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
    figure = drawn(epsilon_plot, [make_claimed(0.77), make_claimed(0.3, claimed=0.1)])
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    assert [bar.get_width() for bar in bars] == [3.5, 0.77, 3.5, 0.3]
    marks = [
        line for line in axes.lines if not line.get_gid()
    ]  # of others it is a text
    lines = [(line.get_label(), np.asarray(line.get_xdata())) for line in marks]
    places = sorted((name, x[0]) for name, x in lines if len(x) == 1)
    assert places == [
        ("certified: at most", 1.1),
        ("certified: at most", 9.0),
        ("claimed", 0.1),
        ("claimed", 8.0),
    ]
    assert axes.get_xlim()[1] > 9


@pytest.mark.parametrize("claimed", [None, 0.1, 500.0])
def test_the_axis_reaches_every_promise(claimed: float | None) -> None:
    figure = drawn(epsilon_plot, [make_claimed(claimed=claimed)])
    assert figure.axes[0].get_xlim()[1] > max(3.5, claimed or 0)


def test_the_picture_of_epsilon_is_read_aloud_with_numbers() -> None:
    assert epsilon_alt(ReportData.of([make_claimed(claimed=None)])) == (
        "Epsilon from one run. dp-fpl: shown 0.77, ceiling 3.50, claimed none, "
        "certified none."
    )
