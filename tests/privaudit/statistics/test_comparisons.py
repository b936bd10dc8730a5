import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, ndtr
from scipy.stats import binomtest, norm

from privaudit.core.errors import ConfigError
from privaudit.statistics.comparisons import (
    Difference,
    IntervalAt,
    holm,
    judge_changes,
    p_above_chance,
    p_value_within,
    paired_accuracy_difference,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import (
    Estimate,
    normal_quantile,
    paired_difference,
    unresolved,
)
from privaudit.statistics.roc import auroc, delong_components, pooled_auroc
from tests.golden import golden


def _correlated(
    rng: np.random.Generator, size: int, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two attacks' scores on the same records, and the truth."""
    truth = rng.permutation(np.arange(size) < size // 2)
    shared = rng.normal(size=size) + shift * truth
    return shared + rng.normal(size=size), shared + rng.normal(size=size), truth


@pytest.mark.parametrize("case", [0, 1, 2, 3, 4, 6, 7])
def test_variance_and_p_value_are_the_golden_ones(case: int) -> None:
    """Student's t is a little more careful than the normal at 60 to 900 records.

    And so is the pooled variance, where it is larger: in case 4, of 120 + 40.
    """
    known = golden("roc", f"c{case}_")
    classes = [known[f"scores{a}_{c}"] for a in (1, 2) for c in ("pos", "neg")]
    first, second = delong_components(*classes[:2]), delong_components(*classes[2:])
    difference = first - second
    expected = known["var_difference"]
    apart = first.delong_variance + second.delong_variance - difference.delong_variance
    assert apart / 2 == pytest.approx(known["delong_cov12"], abs=1e-10)
    assert difference.delong_variance == pytest.approx(expected, abs=1e-10)
    assert difference.value / np.sqrt(difference.delong_variance) == pytest.approx(
        known["paired_z"], abs=1e-9
    )

    truth = np.arange(len(classes[0]) + len(classes[1])) < len(classes[0])
    ours = pooled_paired_auroc_difference(
        [(np.concatenate(classes[:2]), np.concatenate(classes[2:]), truth)]
    )
    normal = float(known["paired_p_two_sided"])
    assert normal <= ours.p_value <= normal + 0.02


def test_the_difference_is_that_of_the_aurocs(rng: np.random.Generator) -> None:
    a, b, truth = _correlated(rng, 60, shift=1.0)
    ours = pooled_paired_auroc_difference([(a, b, truth)])
    expected = auroc(a[truth], a[~truth]).value - auroc(b[truth], b[~truth]).value
    assert ours.estimate.value == pytest.approx(expected, abs=1e-12)
    assert ours.estimate.n == (30, 30)


@given(seed=st.integers(0, 2**32 - 1))
def test_swapping_the_attacks_mirrors_the_comparison(seed: int) -> None:
    a, b, truth = _correlated(np.random.default_rng(seed), 20)
    ours = pooled_paired_auroc_difference([(a, b, truth)])
    mirror = pooled_paired_auroc_difference([(b, a, truth)])
    assert ours.estimate.low == pytest.approx(-mirror.estimate.high, abs=1e-9)
    assert ours.p_value == pytest.approx(mirror.p_value)
    assert ours.estimate.excludes(0) == (ours.p_value < 0.05)


def test_the_same_scores_do_not_differ() -> None:
    scores, truth = np.arange(20.0), np.arange(20) % 2 == 0
    ours = pooled_paired_auroc_difference([(scores, scores, truth)])
    assert (ours.estimate.value, ours.p_value) == (0, 1)
    assert ours.estimate.low < 0 < ours.estimate.high


def test_perfect_against_reversed_is_a_difference_of_one() -> None:
    truth = np.arange(20) < 10
    ours = pooled_paired_auroc_difference([(truth * 1.0, truth * -1.0, truth)])
    assert ours.estimate.value == 1
    assert 0 < ours.estimate.low < 1
    assert ours.p_value < 0.05


def test_groups_are_weighted_by_pairs_and_the_empty_left_out(
    rng: np.random.Generator,
) -> None:
    whole = _correlated(rng, 40, shift=1.0)
    members_only = np.ones(3), np.zeros(3), np.ones(3, bool)
    ours = pooled_paired_auroc_difference([whole, members_only])
    assert ours.estimate.value == pooled_paired_auroc_difference([whole]).estimate.value
    assert "1 left out" in ours.estimate.method
    with pytest.raises(ConfigError, match="None of 1 groups"):
        pooled_paired_auroc_difference([members_only])


@pytest.mark.parametrize("sizes", [(12,), (20,), (60,), (4, 6, 9, 30), (2, 3, 4)])
def test_two_equally_good_attacks_rarely_differ(
    sizes: tuple[int, ...], rng: np.random.Generator
) -> None:
    alarms = [
        pooled_paired_auroc_difference(
            [_correlated(rng, size, shift=0.5) for size in sizes]
        ).p_value
        < 0.05
        for _ in range(500)
    ]
    assert np.mean(alarms) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 500)


def test_a_class_that_ties_is_not_certain_of_a_difference(
    rng: np.random.Generator,
) -> None:
    """0/1 scores of rate 0.05 against none; by Welch alone 44 of 100 differ."""
    truth, alarms = np.arange(110) < 100, []
    for _ in range(200):
        some = 1.0 * (rng.random(110) < 0.05)
        alarms.append(
            pooled_paired_auroc_difference([(some, np.zeros(110), truth)]).p_value
        )
    assert np.mean(np.array(alarms) < 0.05) <= 0.05


def test_in_balanced_classes_a_comparison_is_delongs(rng: np.random.Generator) -> None:
    a, b, truth = _correlated(rng, 400, shift=1.0)
    ours = pooled_paired_auroc_difference([(a, b, truth)]).estimate
    difference = delong_components(a[truth], a[~truth]) - delong_components(
        b[truth], b[~truth]
    )
    expected = 2 * 1.966 * np.sqrt(difference.delong_variance)
    assert ours.high - ours.low == pytest.approx(expected, rel=0.002)


def test_a_true_difference_is_covered_and_found(rng: np.random.Generator) -> None:
    truth = np.arange(200) < 100
    expected = norm.cdf(1 / np.sqrt(2)) - 0.5
    covered, found = [], []
    for _ in range(400):
        good, blind = rng.normal(size=200) + truth, rng.normal(size=200)
        ours = pooled_paired_auroc_difference([(good, blind, truth)])
        covered.append(not ours.estimate.excludes(expected))
        found.append(ours.p_value < 0.05)
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)
    assert np.mean(found) > 0.95


@pytest.mark.parametrize(("only_a", "only_b"), [(10, 0), (3, 7), (4, 4), (0, 0)])
def test_mcnemars_p_is_a_fair_coins(only_a: int, only_b: int) -> None:
    a, b = np.zeros(50, bool), np.zeros(50, bool)
    a[:only_a], b[only_a : only_a + only_b] = True, True
    ours = paired_accuracy_difference(a, b)
    total = only_a + only_b
    expected = binomtest(only_a, total).pvalue if total else 1.0
    assert ours.p_value == pytest.approx(expected)
    assert ours.estimate.value == pytest.approx((only_a - only_b) / 50)


def test_the_paired_accuracy_interval_by_hand() -> None:
    """70 both, 10 only a, 20 neither. Wilson 0.7112-0.8666 and 0.6042-0.7811,
    φ = (1400 - 50) / √(80·20·70·30) = 0.7365, so 0.1 - 0.0621 and 0.1 + 0.0649."""
    ours = paired_accuracy_difference(np.arange(100) < 80, np.arange(100) < 70)
    assert ours.estimate.low == pytest.approx(0.0379, abs=1e-4)
    assert ours.estimate.high == pytest.approx(0.1649, abs=1e-4)


@given(counts=st.tuples(*[st.integers(0, 30)] * 4).filter(any))
def test_paired_accuracies_mirror(counts: tuple[int, int, int, int]) -> None:
    a = np.repeat([True, True, False, False], counts)
    b = np.repeat([True, False, True, False], counts)
    ours, mirror = paired_accuracy_difference(a, b), paired_accuracy_difference(b, a)
    assert ours.estimate.low == pytest.approx(-mirror.estimate.high, abs=1e-12)
    assert -1 <= ours.estimate.low <= ours.estimate.high <= 1
    assert ours.estimate.high > ours.estimate.low


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
def test_paired_accuracies_are_covered(rate: float, rng: np.random.Generator) -> None:
    covered = []
    for _ in range(600):
        shared, own = rng.random(100), rng.random((2, 100))
        mixed = np.where(rng.random(100) < 0.7, shared, own)
        ours = paired_accuracy_difference(mixed[0] < rate, mixed[1] < rate)
        covered.append(not ours.estimate.excludes(0))
    assert np.mean(covered) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 600)


def test_holm_by_hand() -> None:
    """3 * 0.01, 2 * 0.02, 1 * 0.03 raised to 0.04, in the order given."""
    np.testing.assert_allclose(holm([0.03, 0.01, 0.02]), [0.04, 0.03, 0.04])
    np.testing.assert_array_equal(holm([0.9, 0.8]), [1, 1])
    assert len(holm([])) == 0


@given(p_values=st.lists(st.floats(0, 1), max_size=10))
def test_holm_lies_between_nothing_and_bonferroni(p_values: list[float]) -> None:
    ours, raw = holm(p_values), np.array(p_values)
    assert (raw <= ours).all()
    assert (ours <= np.minimum(raw * len(raw), 1) + 1e-15).all()


seeds = st.integers(0, 2**32 - 1)


def estimate(seed: int, shift: float, confidence: float = 0.95) -> Estimate:
    rng = np.random.default_rng(seed)
    return auroc(rng.normal(shift, 1, 30), rng.normal(0, 1, 40), confidence)


def test_an_interval_that_ends_at_chance_has_a_p_of_one_less_its_confidence() -> None:
    z = 1.959963984540054
    found = Estimate(float(expit(z / 4)), 0.5, float(expit(z / 2)), (9, 9), "AUROC")
    assert p_above_chance(found) == pytest.approx(0.05, abs=1e-12)


def test_twice_as_far_is_a_two_sided_normal_tail() -> None:
    """A logit of 1 with an error of 0.4: z = 2.5, and p = 0.01242 from a table."""
    z = 1.959963984540054 * 0.4
    value, low, high = (float(expit(1 + half)) for half in (0, -z, z))
    found = p_above_chance(Estimate(value, low, high, (9, 9), "AUROC"))
    assert found == pytest.approx(0.012419, abs=1e-6)


def test_a_perfect_attack_has_the_chance_that_all_its_pairs_fell_so() -> None:
    """Five pairs that share no record: 2 * 0.5 ** 5."""
    perfect = auroc(np.arange(5) + 10, np.arange(6))
    assert p_above_chance(perfect) == pytest.approx(2 * 0.5**5)


def test_not_above_chance_or_without_an_interval_there_is_no_evidence() -> None:
    for value in (0.0, 0.3, 0.5):
        assert p_above_chance(Estimate(value, 0.0, 0.9, (9, 9), "AUROC")) == 1
    assert p_above_chance(unresolved("too few", (1,), "AUROC", 0.95, 0.9)) == 1


@given(seeds, st.floats(0, 2), st.sampled_from([0.8, 0.95, 0.999]))
def test_p_is_below_alpha_just_where_the_interval_is_above_chance(
    seed: int, shift: float, confidence: float
) -> None:
    found = estimate(seed, shift, confidence)
    assert (p_above_chance(found) < 1 - confidence) == (found.low > 0.5)


@given(seeds, st.floats(0, 2))
def test_p_hardly_depends_on_the_confidence_that_is_printed(
    seed: int, shift: float
) -> None:
    """Tilted samples are nearly, not quite, symmetric on the logit scale."""
    one, other = (p_above_chance(estimate(seed, shift, c)) for c in (0.9, 0.99))
    assert math.isclose(one, other, rel_tol=0.25, abs_tol=1e-4)


def test_without_a_leak_p_is_below_a_twentieth_in_a_fortieth_of_audits() -> None:
    """One side counts, so half of alpha; up to 3 standard errors of 1,500 draws."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(1500, 2, 60))
    found = [
        p_above_chance(pooled_auroc([(one[:30], one[30:]) for one in draw])) <= 0.05
        for draw in draws
    ]
    assert np.mean(found) <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 1500)
    assert np.mean(found) >= 0.01


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
        (0.08, 0.02, "rose, size open", "whether by more than 0.05 is open"),
        (-0.08, 0.02, "fell, size open", "Fell, size open: leak differs by -0.080"),
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
    assert found.kind == "rose, size open"
    assert found.p_within == pytest.approx(5 * 0.0278, abs=1e-3)
    assert "not after Holm" in found.sentence


@given(value=st.floats(-0.3, 0.3), margin=st.floats(0.0, 0.2))
def test_the_p_value_inverts_the_interval(value: float, margin: float) -> None:
    found = p_value_within(normal(value), margin)
    expected = 2 * float(ndtr(-max(abs(value) - margin, 0.0) / 0.02))
    assert found == pytest.approx(max(expected, 1e-12), rel=2e-4, abs=1e-11)


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


NONE, ALL, SCORES = np.zeros(0, bool), np.ones(3, bool), np.zeros(3)


@pytest.mark.parametrize(
    ("compare", "given", "message"),
    [
        (pooled_paired_auroc_difference, [[(SCORES, SCORES[1:], ALL)]], "[3, 2, 3]"),
        (paired_accuracy_difference, [NONE, NONE], "there are 0"),
        (holm, [[0.5, math.nan]], "lie in [0, 1]"),
        (judge_changes, [[Difference("leak", normal(0.0))], 0.0], "A confidence of 0"),
        (Difference, ["leak", normal(0.0), 0.0], "is not between 0 and 1"),
        (Difference, ["leak", normal(0.0), -0.1], "is not between 0 and 1"),
        (Difference, ["leak", normal(0.0), 1.0], "is not between 0 and 1"),
        (Difference, ["leak", normal(0.0), math.nan], "is not between 0 and 1"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    compare: Callable[..., object], given: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        compare(*given)


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
