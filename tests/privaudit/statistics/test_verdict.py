import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate, unresolved
from privaudit.statistics.roc import auroc
from privaudit.statistics.verdict import judge_leak


def _auroc(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low, high, (640, 640), "AUROC")


@pytest.mark.parametrize(
    ("low", "high", "kind", "words"),
    [
        (0.502, 0.560, "leaks", "lies above 0.5"),
        (0.502, 0.520, "leaks", "lies above 0.5"),
        (0.480, 0.540, "no evidence", "nothing above 0.55"),
        (0.500, 0.550, "no evidence", "nothing above 0.55"),
        (0.450, 0.500, "no evidence", "nothing above 0.55."),
        (0.300, 0.520, "no evidence", "above 0.55; with the sign turned, up to 0.700"),
        (0.400, 0.480, "reversed", "members have the lower scores"),
        (0.000, 0.071, "reversed", "Separates, with the sign turned: AUROC 0.03"),
        (0.480, 0.580, "underpowered", "both 0.5 and values above 0.55"),
    ],
)
def test_the_interval_decides(low: float, high: float, kind: str, words: str) -> None:
    estimate = _auroc((low + high) / 2, low, high)
    ours = judge_leak(estimate)
    assert ours.kind == kind
    assert words in ours.sentence
    assert str(estimate) in ours.sentence


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.0), (0.0, 0.1), (0.48, 0.52)])
def test_without_a_coin_a_number_is_no_verdict_on_membership(
    low: float, high: float
) -> None:
    estimate = _auroc((low + high) / 2, low, high)
    ours = judge_leak(estimate, sampling="unknown")
    assert ours.kind == "sampling unknown"
    assert ours.sentence.startswith(f"No verdict on membership: AUROC {estimate}")
    assert "nobody declares that a fair coin" in ours.sentence


def test_twice_the_margin_needs_four_times_the_records() -> None:
    """Width 0.1 at 1,280 records, so 0.05 at 5,120, rounded up to two digits."""
    ours = judge_leak(_auroc(0.53, 0.48, 0.58))
    assert "about 5200 would decide, in place of 1280" in ours.sentence


def test_an_interval_that_is_missing_decides_nothing() -> None:
    ours = judge_leak(unresolved("needs 2 clients, has 1", (1,), "AUROC", 0.95))
    assert ours.kind == "underpowered"
    assert "needs 2 clients, has 1" in ours.sentence


@given(value=st.floats(0.01, 0.99), width=st.floats(0.001, 0.049))
def test_an_interval_narrower_than_the_margin_always_decides(
    value: float, width: float
) -> None:
    low, high = max(value - width / 2, 0.0), min(value + width / 2, 1.0)
    assert judge_leak(_auroc(value, low, high)).kind != "underpowered"


@pytest.mark.parametrize("margin", [0.0, 0.6, -0.1])
def test_a_margin_out_of_range_is_refused(margin: float) -> None:
    with pytest.raises(ConfigError, match=r"not between 0 and 0\.5"):
        judge_leak(_auroc(0.5, 0.4, 0.6), margin)


def test_runs_that_cannot_leak_are_rarely_called_leaky(
    rng: np.random.Generator,
) -> None:
    kinds = [
        judge_leak(auroc(rng.normal(size=40), rng.normal(size=40))).kind
        for _ in range(1000)
    ]
    assert kinds.count("leaks") / 1000 <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 1000)


def test_a_leak_that_many_audits_hide_is_said_to_be_one_alone() -> None:
    found = Estimate(0.55, 0.505, 0.594, (300, 300), "AUROC")
    assert judge_leak(found).kind == "leaks"
    hidden = judge_leak(found, audits=60)
    assert hidden.kind == "underpowered"
    assert "the run's only audit, it would say “leaks”" in hidden.sentence
    chance = Estimate(0.51, 0.46, 0.56, (300, 300), "AUROC")
    assert "only audit" not in judge_leak(chance, audits=60).sentence
