import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from privaudit.core.errors import ConfigError
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.roc import auroc, delong_components
from privaudit_tools.selftest.power import (
    AurocDesign,
    DifferenceDesign,
    auroc_variance,
    required_n,
)

REPEATS = 400
ERROR = 3 * math.sqrt(0.8 * 0.2 / REPEATS)


def _shift(auroc: float) -> float:
    return math.sqrt(2) * float(norm.ppf(auroc))


@pytest.mark.parametrize("size", [1, 7, 500])
def test_the_variance_at_a_half_is_wilcoxons(size: int) -> None:
    """(m + n + 1) / (12 m n) without ties."""
    assert auroc_variance(0.5, size) == pytest.approx((2 * size + 1) / (12 * size**2))


@pytest.mark.parametrize("true_auroc", [0.6, 0.9])
def test_the_variance_is_what_delong_finds(
    true_auroc: float, rng: np.random.Generator
) -> None:
    members, others = rng.normal(size=(2, 100_000))
    found = delong_components(members + _shift(true_auroc), others).delong_variance
    assert found == pytest.approx(auroc_variance(true_auroc, 100_000), rel=0.02)


def test_the_number_for_a_small_leak_by_hand() -> None:
    """(1.960 + 0.842)^2 / 6 / 0.05^2 = 523 at a variance of 1 / 6n."""
    assert required_n(AurocDesign(0.55)) == pytest.approx(523, abs=5)
    assert required_n(AurocDesign(0.5, against=0.55)) == pytest.approx(523, abs=5)
    assert 2**29 < required_n(AurocDesign(0.500046)) < 10**9


@pytest.mark.parametrize(
    ("truth", "against"), [(0.6, 0.5), (0.55, 0.5), (0.5, 0.55), (0.85, 0.75)]
)
def test_the_planned_audits_find_what_they_were_planned_for(
    truth: float, against: float, rng: np.random.Generator
) -> None:
    size, found = required_n(AurocDesign(truth, against)), []
    for _ in range(REPEATS):
        members, others = rng.normal(size=(2, size))
        ours = auroc(members + _shift(truth), others)
        found.append(ours.low > against if truth > against else ours.high < against)
    assert abs(np.mean(found) - 0.8) <= ERROR + 0.02


@pytest.mark.parametrize(
    ("difference", "baseline", "shared", "correlation"),
    [(0.1, 0.5, 0.0, 0.0), (0.05, 0.5, 0.5, 0.5), (0.1, 0.6, 0.8, 0.76)],
)
def test_the_planned_comparisons_find_what_they_were_planned_for(
    difference: float,
    baseline: float,
    shared: float,
    correlation: float,
    rng: np.random.Generator,
) -> None:
    """Scores that share variance make AUROCs that share a little less, measured."""
    design = DifferenceDesign(difference, baseline=baseline, correlation=correlation)
    size, found = required_n(design), []
    truth = np.arange(2 * size) < size
    for _ in range(REPEATS):
        common, *own = rng.normal(size=(3, 2 * size))
        a, b = (
            math.sqrt(shared) * common
            + math.sqrt(1 - shared) * noise
            + _shift(level) * truth
            for noise, level in zip(own, (baseline + difference, baseline), strict=True)
        )
        found.append(pooled_paired_auroc_difference([(a, b, truth)]).estimate.low > 0)
    assert abs(np.mean(found) - 0.8) <= ERROR + 0.03


@given(truth=st.floats(0.51, 0.95), power=st.floats(0.1, 0.95))
def test_the_number_is_the_smallest_that_is_enough(truth: float, power: float) -> None:
    design = AurocDesign(truth)
    size = required_n(design, power)
    assert design.power(size) >= power
    assert size == 2 or design.power(size - 1) < power


@given(truth=st.floats(0.05, 0.45))
def test_swapping_the_labels_needs_as_many(truth: float) -> None:
    assert required_n(AurocDesign(truth)) == required_n(AurocDesign(1 - truth))


def test_power_grows_from_half_alpha_to_one() -> None:
    curve = [DifferenceDesign(0.05).power(n) for n in (10, 100, 1000, 10_000)]
    assert (np.diff(curve) > 0).all()
    assert curve[0] < 0.1
    assert curve[-1] > 0.999


def test_what_two_trainings_share_saves_records() -> None:
    numbers = [
        required_n(DifferenceDesign(0.05, correlation=shared))
        for shared in (0.0, 0.5, 0.9)
    ]
    assert numbers[0] == pytest.approx(2 * numbers[1], rel=0.02)
    assert numbers[1] == pytest.approx(5 * numbers[2], rel=0.05)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AurocDesign(1.0), "An AUROC of 1 is not between 0 and 1"),
        (lambda: AurocDesign(0.5), "tells 0.5 from 0.5"),
        (lambda: AurocDesign(0.6, confidence=1.0), "A confidence of 1.0"),
        (lambda: DifferenceDesign(0.0), "tells 0 from 0"),
        (lambda: DifferenceDesign(0.6), "An AUROC of 1.1"),
        (lambda: DifferenceDesign(0.1, correlation=1.0), "A correlation of 1.0"),
        (lambda: DifferenceDesign(0.1, against=math.nan), "A difference of nan"),
        (lambda: required_n(AurocDesign(0.6), 1.0), "A power of 1.0"),
        (lambda: required_n(AurocDesign(0.5000001)), "does not reach a power of 0.8"),
    ],
)
def test_what_cannot_be_planned_is_refused(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=says):
        make()
