import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from privaudit.auditing.parts.leakage_by_round import LEAKAGE_BY_ROUND
from privaudit.report.figures.figure_style import colour
from privaudit.report.figures.rounds_figure import rounds_alt, rounds_plot
from privaudit.report.report_data import ReportData
from privaudit.report.tables.parts import (
    corrected,
    first_round_above,
    round_sentences,
    source_sentences,
)
from privaudit.statistics.comparisons import p_above_chance
from tests.privaudit.made_audits import make_audit, make_watched


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
    assert first_round_above(leakage) == (0 if count == 1 else None)


def test_where_no_round_stands_out_none_is_named() -> None:
    (sentence,) = round_sentences(make_watched(by_round=[0.5, 0.49, 0.53]))
    assert (
        "no round can be named, Holm-corrected over 3 rounds (smallest p = 0."
        in sentence
    )


def test_source_inference_is_reported_with_its_numbers() -> None:
    (sentence,) = source_sentences(make_watched())
    assert "for 30.0 % [23.7, 36.9] of 200 members" in sentence
    assert "for 20.0 % [14.7, 26.2] of 200 candidates that no client" in sentence
    assert "(by chance 20.0 %)" in sentence
    assert "Training adds +0.100 [" in sentence
    assert sentence.endswith("beyond what its class tells.")


def test_audits_that_did_not_ask_say_nothing() -> None:
    audit = make_audit()
    assert round_sentences(audit) == []
    assert source_sentences(audit) == []
    assert rounds_plot(ReportData.of([audit])) is None


@pytest.mark.parametrize("count", [1, 2])
def test_each_run_has_a_panel_with_lines_and_bands(count: int) -> None:
    audits = [make_watched(), make_watched("coop", by_round=(0.6, 0.7))][:count]
    figure = rounds_plot(ReportData.of(audits))
    assert figure is not None
    assert len(figure.axes) == count
    lines = [line for line in figure.axes[0].lines if len(xs(line)) == 5]
    assert [to_hex(line.get_color()) for line in lines] == [colour(0).lower()]
    (band,) = figure.axes[0].collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.45, 0.67))


def xs(line: Line2D) -> list[float]:
    return list(np.asarray(line.get_xdata()))


def test_the_picture_is_read_aloud_with_numbers() -> None:
    alt = rounds_alt(ReportData.of([make_watched()]))
    assert "promptfl, update-alignment: 0.500 [0.450, 0.550], n = 200 + 200" in alt
    assert "0.580 [0.530, 0.630], n = 200 + 200 in round 8" in alt
