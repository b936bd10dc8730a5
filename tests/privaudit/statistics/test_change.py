from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from privaudit.core.errors import ConfigError
from privaudit.statistics.change import (
    Difference,
    IntervalAt,
    judge_changes,
    p_value_within,
)
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate, paired_difference, unresolved
from privaudit.statistics.intervals import normal_quantile


def normal(value: float, error: float = 0.02, n: int = 100) -> IntervalAt:
    """Return a difference with a normal error, at any confidence."""

    def interval_at(confidence: float) -> Estimate:
        half = normal_quantile(confidence) * error
        return Estimate(value, value - half, value + half, (n,), "made up", confidence)

    return interval_at


@pytest.mark.parametrize(
    ("value", "error", "kind", "says"),
    [
        (0.12, 0.02, "increase", "Increase: leak differs by 0.120 [0.081, 0.159]"),
        (-0.12, 0.02, "decrease", "Decrease: leak differs by -0.120"),
        (0.0, 0.02, "no difference", "No difference beyond 0.05: leak"),
        (0.02, 0.01, "no difference", "No difference beyond 0.05: leak"),
        (0.08, 0.02, "underpowered", "whether by more than 0.05 is open"),
        (0.03, 0.03, "underpowered", "rules out a decrease beyond 0.05"),
        (-0.03, 0.03, "underpowered", "rules out an increase beyond 0.05"),
        (0.0, 0.1, "underpowered", "includes both -0.05 and 0.05"),
    ],
)
def test_an_interval_against_the_margins_says_what_may_be_said(
    value: float, error: float, kind: str, says: str
) -> None:
    (found,) = judge_changes([Difference("leak", normal(value, error))])
    assert found.kind == kind
    assert says in found.sentence


def test_a_gate_asks_one_side_only() -> None:
    (found,) = judge_changes([Difference("leak", normal(-0.03, 0.03))])
    assert found.kind == "underpowered"
    assert found.excludes_increase
    assert not found.excludes_decrease


def test_the_n_it_would_take_by_hand() -> None:
    """100 (0.1 (1.960 + 1.282) / 0.05)^2 = 4203; and, for 0.08 to stay beyond 0.05,
    100 (0.02 (1.960 + 0.842) / 0.03)^2 = 349. Two digits, rounded up."""
    found = judge_changes(
        [Difference("a", normal(0.0, 0.1)), Difference("b", normal(0.08, 0.02))]
    )
    assert [change.enough for change in found] == [4300, 350]
    assert "nothing differs, n = about 4300 would" in found[0].sentence
    assert "as large as it looks, n = about 350 would" in found[1].sentence


def test_beyond_the_margin_alone_is_not_always_so_among_five() -> None:
    """2.2 errors beyond: p = 0.028 for one, 0.14 after Holm for five."""
    rise = Difference("rise", normal(0.05 + 2.2 * 0.02))
    nothing = [Difference(f"other {k}", normal(0.0)) for k in range(4)]
    assert judge_changes([rise])[0].kind == "increase"
    found = judge_changes([rise, *nothing])[0]
    assert found.kind == "underpowered"
    assert found.p_within == pytest.approx(5 * 0.0278, abs=1e-3)
    assert "not after Holm" in found.sentence


@given(value=st.floats(-0.3, 0.3), margin=st.floats(0.0, 0.2))
def test_the_p_value_inverts_the_interval(value: float, margin: float) -> None:
    found = p_value_within(normal(value), margin)
    expected = 1 - normal_to(max(abs(value) - margin, 0.0) / 0.02)
    assert found == pytest.approx(max(expected, 1e-12), rel=2e-4, abs=1e-11)


def normal_to(quantile: float) -> float:
    return float(1 - 2 * ndtr(-quantile))


def test_the_p_value_at_no_margin_is_the_comparisons_own(
    rng: np.random.Generator,
) -> None:
    truth = np.arange(80) < 40
    a, b = rng.normal(size=80) + 0.8 * truth, rng.normal(size=80)

    def interval_at(confidence: float) -> Estimate:
        return pooled_paired_auroc_difference([(a, b, truth)], confidence).estimate

    expected = pooled_paired_auroc_difference([(a, b, truth)]).p_value
    assert p_value_within(interval_at, 0.0) == pytest.approx(expected, rel=1e-3)


def test_one_replicate_decides_nothing() -> None:
    once = Difference("leak", partial(paired_difference, [0.7], [0.5]))
    (found,) = judge_changes([once])
    assert (found.kind, found.enough, found.p_value) == ("underpowered", None, 1)
    assert "needs 2 replicates, has 1" in found.sentence
    assert not found.excludes_increase
    assert not found.excludes_decrease
    assert found.to_dict()["difference"]["low"] is None


def test_what_is_unresolved_stays_so() -> None:
    def interval_at(confidence: float) -> Estimate:
        return unresolved("needs records", (0,), "made up", confidence)

    assert p_value_within(interval_at, 0.0) == 1


@pytest.mark.parametrize("margin", [0.0, -0.1, 1.0, float("nan")])
def test_a_margin_that_is_none_is_refused(margin: float) -> None:
    with pytest.raises(ConfigError, match="is not between 0 and 1"):
        Difference("leak", normal(0.0), margin)


def test_an_alpha_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="A confidence of 0"):
        judge_changes([Difference("leak", normal(0.0))], alpha=0.0)


def test_three_rises_at_the_margin_are_rarely_called_larger(
    rng: np.random.Generator,
) -> None:
    alarms = 0
    for _ in range(150):
        found = judge_changes(
            [Difference(str(k), normal(0.05 + 0.02 * rng.normal())) for k in range(3)]
        )
        alarms += any(change.kind == "increase" for change in found)
    assert alarms / 150 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)
