import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.checks.gate.checks import (
    GateCheck,
    GateQuestion,
    Outcome,
    judge,
    overall,
)
from privaudit.core.formatting import outcome_in_words
from privaudit.evaluation.metric import Side
from privaudit.statistics.estimate import (
    Estimate,
    normal_quantile,
    proportion,
    unresolved,
)


def normal_at(value: float, error: float) -> Callable[[float], Estimate]:
    """Return the interval of a normal estimate with a known error."""

    def at(confidence: float) -> Estimate:
        half = normal_quantile(confidence) * error
        return Estimate(value, value - half, value + half, (50, 50), "z", confidence)

    return at


def change(value: float, about: Side = "leak", error: float = 0.01) -> GateQuestion:
    before = 0.5
    at = normal_at(value, error)
    setting = "margin" if about == "leak" else "utility_margin"
    return GateQuestion("AUROC", about, setting, 0.05, before + value, before, at)


def limit(value: float, line: float, about: Side = "leak") -> GateQuestion:
    setting = "max_auroc" if about == "leak" else "min_utility"
    at = normal_at(value, 0.01)
    return GateQuestion("AUROC", about, setting, line, value, None, at)


def answer(question: GateQuestion) -> GateCheck:
    return judge([question])[0]


@pytest.mark.parametrize(
    ("question", "outcome"),
    [
        (change(0.1), "regression"),
        (change(0.0), "pass"),
        (change(-0.2), "pass"),
        (change(0.05), "rose, size open"),
        (change(0.015), "pass"),
        (change(0.05, error=0.03), "underpowered"),
        (change(0.04), "rose, size open"),
        (change(-0.1, "utility"), "regression"),
        (change(0.1, "utility"), "pass"),
        (change(-0.05, "utility"), "fell, size open"),
        (limit(0.7, 0.6), "regression"),
        (limit(0.5, 0.6), "pass"),
        (limit(0.6, 0.6), "underpowered"),
        (limit(0.59, 0.6), "underpowered"),
        (limit(0.7, 0.8, "utility"), "regression"),
        (limit(0.9, 0.8, "utility"), "pass"),
        (limit(0.81, 0.8, "utility"), "underpowered"),
    ],
)
def test_worse_beyond_the_line_is_a_regression_and_ruled_out_is_a_pass(
    question: GateQuestion, outcome: Outcome
) -> None:
    found = answer(question)
    assert found.outcome == outcome
    assert found.sentence.startswith(outcome_in_words(outcome).capitalize())
    assert (found.enough is None) == (outcome in ("pass", "regression"))


def test_a_rise_of_unknown_size_reads_as_one_only_where_it_is_proved() -> None:
    """2.2 errors above nothing: proved alone, and not among two checks, or by an attack
    that was stronger than the baseline's, or where no coin chose members."""
    rise = change(0.044, error=0.02)
    found = answer(rise)
    assert found.outcome == "rose, size open"
    assert "rose, and whether beyond the margin of 0.05 is open" in found.sentence
    assert answer(replace(rise, stronger=True)).outcome == "underpowered"
    assert answer(replace(rise, sampling="unknown")).outcome == "underpowered"
    assert judge([rise, change(0.0, error=0.02)])[0].outcome == "underpowered"


def test_the_p_value_is_that_of_the_line() -> None:
    """0.1 lies 5 errors above a margin of 0.05: p = 2 Phi(-5)."""
    found = answer(change(0.1, error=0.01))
    assert found.p_value == pytest.approx(math.erfc(5 / math.sqrt(2)), rel=1e-4)
    assert answer(limit(0.63, 0.6)).p_value == pytest.approx(0.0026998, rel=1e-3)


def test_better_than_the_line_has_no_p_value_to_show() -> None:
    assert answer(change(-0.3)).p_value == 1.0


def test_all_checks_share_one_correction() -> None:
    """2.2 errors beyond the line: p = 0.028 alone, and 0.056 among two."""
    alone = limit(0.622, 0.6)
    assert answer(alone).outcome == "regression"
    first, _ = judge([alone, change(0.04)])
    assert first.outcome == "underpowered"
    assert "not after Holm's correction" in first.sentence
    assert first.p_value == pytest.approx(2 * answer(alone).p_value, rel=1e-4)


def test_alpha_moves_the_interval() -> None:
    strict, loose = (judge([change(0.03)], alpha)[0] for alpha in (0.01, 0.2))
    assert (strict.outcome, loose.outcome) == ("rose, size open", "pass")
    assert strict.estimate.high > loose.estimate.high


def test_enough_would_decide() -> None:
    """The error falls with the root of n: 0.05 = (1.96 + 0.84) errors at enough."""
    found = answer(change(0.0, error=0.03))
    assert found.enough is not None
    error = 0.03 * math.sqrt(100 / found.enough)
    assert 0.05 / error == pytest.approx(1.96 + 0.8416, rel=0.02)
    assert f"n = about {found.enough}" in found.sentence
    assert "in place of 100" in found.sentence


def test_an_unresolved_number_is_undecided_with_its_reason() -> None:
    def at(confidence: float) -> Estimate:
        return unresolved("needs 2 replicates, has 1", (1,), "none", confidence)

    for before in (0.5, None):
        question = GateQuestion("AUROC", "utility", "margin", 0.05, 0.5, before, at)
        found = answer(question)
        assert found.outcome == "underpowered"
        assert "needs 2 replicates" in found.sentence
        assert found.enough is None


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ((0.0, 0.0), "pass"),
        ((0.0, 0.05), "rose, size open"),
        ((0.3, 0.05), "regression"),
        ((0.3, 0.0), "regression"),
    ],
)
def test_the_worst_answer_decides(values: tuple[float, ...], outcome: Outcome) -> None:
    assert overall(judge([change(value) for value in values])) == outcome


@settings(deadline=None)  # a loaded machine is no bug
@given(st.floats(-0.4, 0.4), st.floats(0.001, 0.2))
def test_leak_and_use_are_mirrors(value: float, error: float) -> None:
    leak, use = (
        answer(change(value, error=error)),
        answer(change(-value, "utility", error)),
    )
    assert leak.outcome.replace("rose", "fell") == use.outcome
    assert leak.enough == use.enough


@given(st.integers(0, 60), st.floats(0.05, 0.95))
def test_a_limit_is_what_the_interval_says(right: int, line: float) -> None:
    def at(confidence: float) -> Estimate:
        return proportion(right, 60, confidence)

    found = answer(GateQuestion("rate", "leak", "max", line, right / 60, None, at))
    estimate = at(0.95)
    expected = "underpowered"
    if estimate.low > line + 1e-6:
        expected = "regression"
    elif estimate.high < line - 1e-6:
        expected = "pass"
    near = min(abs(estimate.low - line), abs(estimate.high - line)) < 1e-4
    assert near or found.outcome == expected


@pytest.mark.slow
def test_false_alarms_stay_below_alpha_at_the_margin_itself() -> None:
    """The worst case: five changes, each exactly as large as its margin."""
    rng, pairs, alarms = np.random.default_rng(3), 200, 0
    for _ in range(pairs):
        values = (0.05 + 0.02 * rng.standard_normal(5)).tolist()
        alarms += overall(judge([change(v, error=0.02) for v in values])) == (
            "regression"
        )
    assert proportion(alarms, pairs, 0.999).low <= 0.05
