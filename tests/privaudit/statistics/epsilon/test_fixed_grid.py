import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.statistics.epsilon.designs import IndependentRuns
from privaudit.statistics.epsilon.fixed_grid import FixedGrid
from tests.golden import golden


def golden_runs(case: int) -> IndependentRuns:
    known = golden("audit_bounds", f"c{case}_")
    inside, outside = known["in_scores"], known["out_scores"]
    coins = np.arange(len(inside) + len(outside)) < len(inside)
    return IndependentRuns(np.concatenate([inside, outside]), coins)


@pytest.mark.parametrize("case", range(8))
def test_one_threshold_equals_the_golden_bound(case: int) -> None:
    known = golden("audit_bounds") | golden("audit_bounds", f"c{case}_")
    runs, at = golden_runs(case), float(known["explicit_threshold"])
    ours = [
        [
            FixedGrid(thresholds=(at,), confidence=1 - a, delta=d)(runs).value
            for d in known["delta_cp"].tolist()
        ]
        for a in known["significance"].tolist()
    ]
    expected = known["cp_explicit_twosided"]
    assert np.array(ours) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", range(8))
def test_the_same_thresholds_given_beforehand_equal_the_golden_correction(
    case: int,
) -> None:
    """There the thresholds are the corners of the ROC curve that is judged with them.

    The numbers agree, the procedures do not: those thresholds are no grid fixed in
    advance, so we have no function that would take them.
    """
    known = golden("audit_bounds") | golden("audit_bounds", f"c{case}_")
    runs = golden_runs(case)
    grid = tuple(known["hull_thresholds"].tolist())
    ours = [
        [
            FixedGrid(thresholds=grid, confidence=1 - a, delta=d)(runs).value
            for d in known["delta_cp"].tolist()
        ]
        for a in known["significance"].tolist()
    ]
    expected = known["cp_bonferroni_twosided"]
    assert np.array(ours) == pytest.approx(expected, abs=1e-6)


@given(seed=st.integers(0, 10**6), shift=st.floats(0, 5), delta=st.floats(0, 0.1))
def test_swapping_the_classes_and_the_direction_changes_nothing(
    seed: int, shift: float, delta: float
) -> None:
    rng = np.random.default_rng(seed)
    is_member = rng.random(60) < 0.5
    scores = rng.standard_normal(60) + shift * is_member
    ours = FixedGrid(thresholds=(0.0, 1.0), delta=delta)
    mirrored = FixedGrid(thresholds=(0.0, -1.0), delta=delta)
    assert ours(IndependentRuns(scores, is_member)).value == pytest.approx(
        mirrored(IndependentRuns(-scores, ~is_member)).value
    )


def test_every_threshold_costs() -> None:
    runs = IndependentRuns(np.arange(100.0), np.arange(100) >= 50)
    values = [FixedGrid(thresholds=(50.0,) * count)(runs).value for count in (1, 2, 20)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3


def test_a_grid_without_thresholds_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        FixedGrid(thresholds=())
