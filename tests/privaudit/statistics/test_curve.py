import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata
from sklearn.metrics import roc_curve as sklearn_roc_curve

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import proportion
from privaudit.statistics.roc import (
    Groups,
    advantage,
    class_averaged_success,
    mean_ranks,
    pooled_ranks,
    roc_curve,
    success_rate,
    tpr_at_fpr,
    tpr_over_seeds,
)
from tests.golden import golden


@given(st.lists(st.sampled_from([0.0, -0.0, 0.5, -1.0, 3.0, np.inf]), max_size=30))
def test_ranks_equal_scipys(scores: list[float]) -> None:
    np.testing.assert_array_equal(mean_ranks(np.array(scores)), rankdata(scores))


@given(seed=st.integers(0, 2**32 - 1), levels=st.integers(2, 50))
def test_the_curve_equals_sklearns(seed: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(levels, size=60).astype(float)
    truth = np.arange(60) < 25
    ours = roc_curve(scores[truth], scores[~truth])
    false, true, _ = sklearn_roc_curve(truth, scores, drop_intermediate=False)
    np.testing.assert_allclose(ours.fpr, false, atol=1e-12)
    np.testing.assert_allclose(ours.tpr, true, atol=1e-12)


def test_the_band_holds_the_curve(rng: np.random.Generator) -> None:
    curve = roc_curve(rng.normal(size=30), rng.normal(size=40))
    low, high = curve.band()
    assert (low <= curve.tpr).all()
    assert (curve.tpr <= high).all()
    assert low[0] == 0
    assert high[0] == pytest.approx(1 - 0.025 ** (1 / 30))


@given(seed=st.integers(0, 2**32 - 1), fpr=st.floats(0.1, 0.98))
def test_the_rate_agrees_with_sklearn(seed: int, fpr: float) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(40, size=200).astype(float)
    truth = np.arange(200) < 80
    false, true, _ = sklearn_roc_curve(truth, scores, drop_intermediate=False)
    ours = tpr_at_fpr(scores[truth], scores[~truth], fpr)
    assert ours.value == pytest.approx(true[false <= fpr + 1e-12].max())
    assert 0 <= ours.low <= ours.value <= ours.high <= 1


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("scores", [1, 2])
def test_the_rate_equals_the_golden_one(case: int, scores: int) -> None:
    """The case is repeated until it has 10/fpr non-members: that moves no rate."""
    known = golden("roc") | golden("roc", f"c{case}_")
    members = known[f"scores{scores}_pos"]
    others = known[f"scores{scores}_neg"]
    expected = known[f"tpr_at_fpr{scores}"]
    for fpr, rate in zip(known["fpr_targets"], expected, strict=True):
        if 0 < fpr < 1:
            copies = int(np.ceil(10 / fpr / len(others)))
            ours = tpr_at_fpr(members, np.tile(others, copies), float(fpr))
            assert ours.value == pytest.approx(float(rate), abs=1e-10)


def test_ties_count_as_calls() -> None:
    """Calling at 1 would call half of the non-members, so only 2 is called."""
    members = np.array([2.0, 1.0, 1.0, 1.0])
    others = np.repeat([1.0, 0.0], 50)
    assert tpr_at_fpr(members, others, 0.4).value == 0.25
    assert tpr_at_fpr(members, others, 0.5).value == 1


def test_a_rate_that_rounds_down_in_binary_loses_no_call() -> None:
    """100 * 0.29 is 28.999... in floating point; 29 calls are allowed."""
    ours = tpr_at_fpr(np.array([70.5, 71.5]), np.arange(100.0), 0.29)
    assert ours.value == 1


def test_too_few_non_members_leave_the_rate_unresolved() -> None:
    ours = tpr_at_fpr(np.zeros(50), np.zeros(100), 0.01)
    assert str(ours) == "unresolved (needs 1000 non-members, has 100)"
    assert not tpr_at_fpr(np.zeros(50), np.zeros(100), 0.1).unresolved


@pytest.mark.parametrize(
    ("members", "others", "fpr"),
    [(30, 100, 0.1), (100, 100, 0.1), (640, 640, 0.1), (300, 1000, 0.01)],
)
@pytest.mark.parametrize(("shift", "spread"), [(0, 1), (1, 1), (3, 1), (0, 3)])
def test_the_interval_covers_the_rate_at_the_true_threshold(
    members: int,
    others: int,
    fpr: float,
    shift: float,
    spread: float,
    rng: np.random.Generator,
) -> None:
    truth = norm.sf((norm.isf(fpr) - shift) / spread)
    covered = [
        not tpr_at_fpr(
            rng.normal(shift, spread, members), rng.normal(size=others), fpr
        ).excludes(truth)
        for _ in range(500)
    ]
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 500)


def test_a_rate_at_a_threshold_that_ties_counts_both_errors() -> None:
    """A tenth of the non-members score 1: half of all draws put the threshold there.

    So the true rate at an FPR of 0.1 is 0.3; with errors added as legs of a right
    angle 21 of 100 intervals end below it.
    """
    rng = np.random.default_rng(0)
    missed = [
        tpr_at_fpr(
            1.0 * (rng.random(100) < 0.3), 1.0 * (rng.random(100) < 0.1), 0.1
        ).excludes(0.3)
        for _ in range(300)
    ]
    assert np.mean(missed) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_ranks_within_clients_resolve_what_no_client_could() -> None:
    """Two clients on scales of their own: a threshold for ranks finds both's members."""
    rng = np.random.default_rng(5)
    clients, truths = [], []
    for scale in (1e-3, 1e3):
        truth = rng.random(2000) < 0.4
        clients.append(scale * (rng.normal(size=2000) + 3 * truth - 50))
        truths.append(truth)
    scores, truth = pooled_ranks(clients), np.concatenate(truths)
    alone = np.concatenate(clients)
    found = tpr_at_fpr(scores[truth], scores[~truth], 0.01)
    mixed = tpr_at_fpr(alone[truth], alone[~truth], 0.01)
    assert not found.unresolved
    assert found.low > 0.6
    assert mixed.high < 0.6


def test_ranks_of_one_client_are_in_the_order_of_its_scores() -> None:
    scores = np.array([0.3, -1.0, 0.3, 7.0])
    assert pooled_ranks([scores]).tolist() == [1, 0, 1, 2]


def test_equal_ranks_of_two_clients_go_by_their_scores() -> None:
    assert pooled_ranks([np.zeros(3), np.ones(3)]).tolist() == [0, 0, 0, 1, 1, 1]


def seeds(rng: np.random.Generator, count: int, records: int) -> list[Groups]:
    """Return seeds that differ in how much they leak."""
    shifts = rng.normal(1.0, 0.3, count)
    return [
        (rng.normal(shift, 1, records), rng.normal(0, 1, records)) for shift in shifts
    ]


def test_five_seeds_resolve_what_one_does_not(rng: np.random.Generator) -> None:
    groups = seeds(rng, 5, 200)
    assert tpr_over_seeds(groups[:1]).unresolved == "needs 1000 non-members, has 200"
    assert not tpr_over_seeds(groups).unresolved


def test_a_single_seed_is_that_of_its_records(rng: np.random.Generator) -> None:
    (group,) = seeds(rng, 1, 1000)
    assert tpr_over_seeds([group]) == tpr_at_fpr(*group, 0.01)


def test_the_interval_is_never_narrower_than_that_of_records(
    rng: np.random.Generator,
) -> None:
    groups = seeds(rng, 4, 300)
    members, others = (np.concatenate(side) for side in zip(*groups, strict=True))
    plain, found = tpr_at_fpr(members, others, 0.01), tpr_over_seeds(groups)
    assert found.value == plain.value
    assert found.low <= plain.low
    assert found.high >= plain.high
    assert found.n == (1200, 1200)


def test_seeds_that_leak_unlike_are_covered_by_the_spread_over_seeds() -> None:
    rng = np.random.default_rng(5)
    truth = tpr_over_seeds(seeds(rng, 500, 400)).value
    found = [tpr_over_seeds(seeds(rng, 5, 400)) for _ in range(200)]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.88


TRUTH = np.array([True, True, True, False, False])
GUESSES = np.array([True, True, False, True, False])


def test_success_counts_right_guesses_of_both_kinds() -> None:
    ours, expected = success_rate(TRUTH, GUESSES), proportion(3, 5)
    assert (ours.value, ours.low, ours.high) == (0.6, expected.low, expected.high)


def test_every_class_counts_the_same() -> None:
    """Class 7: 2 of 2 right; class 9: 1 of 3; the average is 2/3, not 3/5."""
    ours = class_averaged_success(TRUTH, GUESSES, np.array([7, 7, 9, 9, 9]))
    assert ours.value == pytest.approx(2 / 3)
    assert ours.n == (5,)


@given(right=st.integers(0, 40))
def test_with_one_class_the_average_is_the_plain_rate(right: int) -> None:
    truth, guesses = np.ones(40, bool), np.arange(40) < right
    ours = class_averaged_success(truth, guesses, np.zeros(40, int))
    plain = success_rate(truth, guesses)
    assert (ours.value, ours.low, ours.high) == pytest.approx(
        (plain.value, plain.low, plain.high), abs=1e-9
    )


def test_advantage_by_hand() -> None:
    """Two of three members called, one of two non-members."""
    ours = advantage(TRUTH, GUESSES)
    assert ours.value == pytest.approx(2 / 3 - 1 / 2)
    assert ours.n == (3, 2)


@pytest.mark.parametrize(
    ("measure", "given", "message"),
    [
        (tpr_at_fpr, (np.zeros(5), np.zeros(5), 0.0), "not between 0 and 1"),
        (tpr_at_fpr, (np.zeros(5), np.zeros(5), 1.0), "not between 0 and 1"),
        (tpr_at_fpr, (np.zeros(5), np.zeros(5), 10.0), "not between 0 and 1"),
        (tpr_over_seeds, ([],), "no seeds to pool"),
        (advantage, (np.full(5, True), GUESSES), "in 0 trials"),
        (advantage, (np.full(5, False), GUESSES), "in 0 trials"),
        (success_rate, (TRUTH, GUESSES[:4]), "[5, 4]"),
        (class_averaged_success, (TRUTH, GUESSES, np.zeros(3)), "[5, 5, 3]"),
        (success_rate, (TRUTH[:0], GUESSES[:0]), "[0, 0]"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    measure: Callable[..., object], given: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        measure(*given)


@pytest.mark.parametrize("sizes", [[2] * 10, [5] * 10, [20] * 10, [1, 2, 5, 10, 40]])
@pytest.mark.parametrize("rates", [(0.5, 0.5), (0.9, 0.9), (0.5, 1.0), (1.0, 0.5)])
def test_the_class_average_is_covered(
    sizes: list[int], rates: tuple[float, float], rng: np.random.Generator
) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rate = np.linspace(*rates, len(sizes))
    covered = []
    for _ in range(400):
        right = rng.random(len(labels)) < rate[labels]
        ours = class_averaged_success(np.ones(len(labels), bool), right, labels)
        covered.append(not ours.excludes(float(rate.mean())))
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize(
    ("size", "true_rate", "false_rate"),
    [(10, 0.5, 0.5), (30, 0.1, 0.1), (100, 0.7, 0.3), (100, 0.99, 0.01)],
)
def test_advantage_is_covered(
    size: int, true_rate: float, false_rate: float, rng: np.random.Generator
) -> None:
    truth = np.arange(2 * size) < size
    rate = np.where(truth, true_rate, false_rate)
    covered = [
        not advantage(truth, rng.random(2 * size) < rate).excludes(
            true_rate - false_rate
        )
        for _ in range(600)
    ]
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 600)
