import json
import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import (
    Estimate,
    mean_with_t,
    paired_difference,
    proportion,
    two_proportions,
    unresolved,
)
from tests.golden import golden

RESOLVED = Estimate(0.531, 0.502, 0.560, (640, 640), "AUROC")
NEEDS_MORE = unresolved("needs 1000 non-members, has 100", (50, 100), "TPR", 0.95)


def test_an_estimate_prints_value_interval_and_n() -> None:
    assert str(RESOLVED) == "0.531 [0.502, 0.560], n = 640 + 640"


def test_an_unresolved_estimate_prints_why() -> None:
    assert str(NEEDS_MORE) == "unresolved (needs 1000 non-members, has 100)"


def test_an_interval_excludes_what_lies_outside() -> None:
    assert RESOLVED.excludes(0.5)
    assert not RESOLVED.excludes(0.502)
    assert not NEEDS_MORE.excludes(0.5)


@pytest.mark.parametrize("estimate", [RESOLVED, NEEDS_MORE, mean_with_t([0.5])])
def test_an_estimate_survives_json(estimate: Estimate) -> None:
    text = json.dumps(estimate.to_dict(), allow_nan=False)
    np.testing.assert_equal(
        asdict(Estimate.from_dict(json.loads(text))), asdict(estimate)
    )


OTHER_VERSION, NAN = {**RESOLVED.to_dict(), "sigma": 1.0}, math.nan


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Estimate.from_dict(OTHER_VERSION), "another version"),
        (lambda: Estimate(0.7, 0.1, 0.6, (9,), ""), r"0\.7 has the interval \[0\.1, 0"),
        (lambda: Estimate(NAN, NAN, NAN, (9,), ""), "say in `unresolved`"),
        (lambda: proportion(5, 9, 95.0), r"95\.0 is not between 0 and 1"),
        (lambda: proportion(0, 0), "0 successes in 0 trials"),
        (lambda: proportion(3, 2), "3 successes in 2 trials"),
        (lambda: proportion(-1, 2), "-1 successes in 2 trials"),
        (lambda: mean_with_t([]), "finite replicates"),
        (lambda: mean_with_t([0.5, math.nan]), "finite replicates"),
        (lambda: paired_difference([0.1, 0.2], [0.1]), "there are 2 and 1"),
    ],
)
def test_what_gives_no_estimate_is_refused(
    make: Callable[[], Estimate], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_proportion_equals_the_golden_clopper_pearson() -> None:
    known = golden("roc")
    confidence = 1 - float(known["cp_alpha"])
    columns = (known[name] for name in ("cp_k", "cp_n", "cp_lower", "cp_upper"))
    for successes, trials, low, high in zip(*columns, strict=True):
        ours = proportion(int(successes), int(trials), confidence)
        assert (ours.low, ours.high) == pytest.approx((low, high), abs=1e-10)


@given(trials=st.integers(1, 10_000), share=st.floats(0, 1))
def test_proportion_mirrors(trials: int, share: float) -> None:
    successes = int(share * trials)
    ours, mirror = proportion(successes, trials), proportion(trials - successes, trials)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1
    assert ours.high - ours.low > 0
    assert ours.low == pytest.approx(1 - mirror.high, abs=1e-9)


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        pytest.param((56, 70, 48, 80), 0.0524, 0.3339, id="a"),
        pytest.param((9, 10, 3, 10), 0.1705, 0.8090, id="b"),
        pytest.param((5, 56, 0, 29), -0.0381, 0.1926, id="d"),
        pytest.param((10, 10, 0, 10), 0.6075, 1.0, id="h"),
    ],
)
def test_two_proportions_match_newcombes_table(
    counts: tuple[int, int, int, int], low: float, high: float
) -> None:
    """Newcombe 1998, Statistics in Medicine 17, 873-890, table II, method 10."""
    ours = two_proportions(*counts)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=5e-5)


def test_mean_of_seeds_by_hand() -> None:
    """Mean 2, variance 1, standard error 1/√3, t of 2 degrees of freedom 4.30265."""
    ours = mean_with_t(np.array([1.0, 2.0, 3.0]))
    assert ours.value == 2
    assert ours.high - 2 == pytest.approx(4.30265 / math.sqrt(3), abs=1e-5)
    assert ours.n == (3,)


def test_one_seed_has_no_interval() -> None:
    ours = mean_with_t([0.7])
    assert ours.value == 0.7
    assert ours.unresolved == "needs 2 replicates, has 1"


def test_pairing_takes_out_what_the_seeds_share(rng: np.random.Generator) -> None:
    shared = rng.normal(size=20)
    ours = paired_difference(shared + 0.1 + 1e-3 * rng.normal(size=20), shared)
    assert ours.high - ours.low < 0.01
    assert ours.excludes(0)
    assert "paired" in ours.method


def test_estimates_are_numbers_where_numbers_are_wanted() -> None:
    low = Estimate(0.55, 0.5, 0.6, (10, 10), "by hand")
    high = Estimate(0.7, 0.6, 0.8, (10, 10), "by hand")
    assert float(low) == 0.55
    assert sorted([high, low]) == [low, high]
    assert max(low, high) > 0.6
    assert low < 0.6 < high
    assert f"{high:.1f}" == "0.7 [0.6, 0.8]"
    assert f"{high}" == str(high)
    assert f"{unresolved('needs 2', (1,), 'none', 0.95):.2f}" == "unresolved (needs 2)"
    assert low._repr_html_() == str(low)
