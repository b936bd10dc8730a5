from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from privaudit.core.errors import ConfigError
from privaudit.runs.config import make_config
from privaudit.runs.population import populate
from privaudit.statistics.roc import delong_components, pooled_auroc
from privaudit_labs.shift.blind_baseline import (
    FOLDS,
    _deal_folds,
    beyond_blind,
    blind_baseline,
    blind_scores,
    pooled_blind_auroc,
)
from privaudit_labs.shift.blind_family import BlindFamily

SEEDS = 300
MISSES = 0.05 + 3 * np.sqrt(0.05 * 0.95 / SEEDS)


def drawn(
    seed: int, count: int = 120, columns: int = 10, apart: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Features of a coin's members and non-members, ``apart`` in the first column."""
    rng = np.random.default_rng(seed)
    truth = rng.random(count) < 0.5
    features = rng.normal(size=(count, columns))
    features[truth, 0] += apart
    return features, truth


def test_a_feature_that_tells_the_source_is_found_by_hand() -> None:
    """40 against 60, so 40 disjoint pairs: the bound at 1 is 0.025^(1/40)."""
    features, _ = drawn(0, count=100, columns=3)
    features[:40, 1] += 100
    found = blind_baseline(features[:40], features[40:])
    assert found.value == found.high == 1
    assert found.low == pytest.approx(0.025 ** (1 / 40))
    assert found.n == (40, 60)


def test_each_record_is_scored_by_a_fit_to_the_other_folds() -> None:
    """Oracle: scikit-learn's own scaler, pipeline and cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from privaudit.core.seeds import Seeds

    features, truth = drawn(3, apart=1.0)
    folds = _deal_folds(truth, Seeds(7).stream("blind attacker").numpy())
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
    looks = cross_val_predict(
        model, features, truth, cv=PredefinedSplit(folds), method="decision_function"
    )
    ours = blind_scores(features, truth, seed=7)
    for fold in range(FOLDS):
        mine = folds == fold
        expected = (rankdata(looks[mine]) - 0.5) / mine.sum()
        np.testing.assert_allclose(ours[mine], expected)


def test_folds_hold_members_and_others_in_equal_shares() -> None:
    truth = np.arange(103) < 31
    folds = _deal_folds(truth, np.random.default_rng(0))
    members = np.bincount(folds[truth], minlength=FOLDS)
    others = np.bincount(folds[~truth], minlength=FOLDS)
    assert np.ptp(members) == 1
    assert np.ptp(others) == 1
    assert len(members) == FOLDS


@cache
def split_by_a_coin(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Blind scores of features that tell nothing of who is a member."""
    features, truth = drawn(seed)
    return blind_scores(features, truth, seed), truth


def test_where_a_coin_decides_intervals_miss_one_half_as_rarely_as_they_say() -> None:
    """The must-fail control; DeLong's own variance would cry wolf."""
    missed, plain = 0, 0
    for seed in range(SEEDS):
        scores, truth = split_by_a_coin(seed)
        groups = [(scores[truth], scores[~truth])]
        missed += pooled_blind_auroc(groups).excludes(0.5)
        placed = delong_components(scores[truth], scores[~truth])
        error = np.sqrt(placed.delong_variance)
        plain += abs(placed.value - 0.5) > norm.ppf(0.975) * error
    assert missed / SEEDS <= MISSES
    assert plain / SEEDS > MISSES


def test_the_paired_difference_covers_nothing_where_there_is_nothing() -> None:
    """An attack that guesses, and a blind attacker that has nothing to learn."""
    missed = 0
    for seed in range(SEEDS):
        scores, truth = split_by_a_coin(seed)
        guess = np.random.default_rng(1000 + seed).random(len(truth))
        found = beyond_blind([(guess, scores, truth)])
        missed += found.estimate.excludes(0)
        assert (found.p_value < 0.05) == found.estimate.excludes(0)
    assert missed / SEEDS <= MISSES


@pytest.mark.slow
def test_coins_over_real_digits_leave_the_blind_attacker_at_chance() -> None:
    records = populate(make_config("zero-shot")).records
    seen = np.concatenate(
        [records.features.numpy(), np.eye(10)[records.labels.numpy()]], axis=1
    )
    missed, above, audits = 0, 0, 60
    for seed in range(audits):
        rng = np.random.default_rng(seed)
        some = seen[rng.permutation(len(seen))[:540]]
        truth = rng.random(len(some)) < 0.5
        found = blind_baseline(some[truth], some[~truth], seed)
        missed += found.excludes(0.5)
        above += found.low > 0.5
    assert missed / audits <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / audits)
    assert above / audits <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / audits)


def test_a_plain_shift_is_found_and_a_better_one_better() -> None:
    values = []
    for apart in (0.0, 1.0, 2.0, 4.0):
        features, truth = drawn(5, count=400, apart=apart)
        found = blind_baseline(features[truth], features[~truth])
        expected = norm.cdf(apart / np.sqrt(2))
        assert abs(found.value - expected) < 0.06
        values.append(found.value)
    assert values == sorted(values)
    assert values[-1] > 0.99


@given(st.integers(0, 1000), st.floats(0.01, 100), st.floats(-50, 50))
@settings(max_examples=15, deadline=None)
def test_units_of_a_feature_change_nothing(
    seed: int, scale: float, offset: float
) -> None:
    features, truth = drawn(seed, count=60, columns=3, apart=1.0)
    other = features * [scale, 1.0, 1.0] + [0.0, offset, 0.0]
    one, two = (blind_scores(f, truth, seed) for f in (features, other))
    np.testing.assert_allclose(one, two, atol=0.1)  # ties may turn by rounding


def test_a_constant_feature_says_nothing() -> None:
    found = blind_baseline(np.ones((20, 2)), np.ones((30, 2)))
    assert found.value == 0.5


def test_the_seed_decides_everything() -> None:
    features, truth = drawn(2)
    first, again = (blind_scores(features, truth, 4) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != blind_scores(features, truth, 5)).any()


def test_one_that_is_hardly_ever_wrong_is_no_coin() -> None:
    """Twelve clients, one of whom has one pair out of order."""
    right = np.arange(15.0, 30.0), np.arange(14.0)
    wrong = np.arange(15.0, 30.0), np.arange(14.0) + np.eye(14)[13] * 2.5
    plain = pooled_auroc([wrong] + [right] * 11)
    blind = pooled_blind_auroc([wrong] + [right] * 11)
    assert blind.excludes(0.5)
    assert blind.value > 0.999
    assert blind.low < plain.low
    assert blind.high >= plain.high


def test_two_who_are_always_right_differ_by_nothing_and_know_it_roughly() -> None:
    truth = np.arange(60) < 30
    found = beyond_blind([(truth.astype(float), truth.astype(float), truth)])
    assert found.estimate.value == 0
    assert found.estimate.low < 0 < found.estimate.high


def test_an_attack_that_knows_more_is_above_a_blind_one() -> None:
    features, truth = drawn(8, count=300)
    knows = truth + np.random.default_rng(0).normal(size=len(truth))
    found = beyond_blind([(knows, blind_scores(features, truth), truth)])
    assert found.estimate.low > 0
    assert found.p_value < 1e-3


NOTHING = np.zeros((50, 0))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (["a tag {} on a card"], ["a dog {} on a card"]),
        # The same colours and shapes, but never the same colour on the same shape.
        (
            ["a red ball and a blue box {}", "a blue box and a red ball {}"],
            ["a blue ball and a red box {}", "a red box and a blue ball {}"],
        ),
        (["{} walked"], ["{} walking"]),  # of letters alone
    ],
)
def test_texts_tell_where_features_do_not(here: list[str], there: list[str]) -> None:
    written = [
        [texts[n % len(texts)].format(n % 7) for n in range(50)]
        for texts in (here, there)
    ]
    found = blind_baseline(
        NOTHING, NOTHING, member_texts=written[0], nonmember_texts=written[1]
    )
    assert found.value == 1


def test_a_choice_of_classifiers_finds_nothing_where_a_coin_deals() -> None:
    """Without folds of their own, the best of three would look good on any data."""
    missed, words = 0, [f"w{n}" for n in range(40)]
    for seed in range(24):
        rng = np.random.default_rng(seed)
        truth = rng.random(80) < 0.5
        texts = [" ".join(rng.choice(words, 6)) for _ in truth]
        scores = blind_scores(rng.normal(size=(80, 4)), truth, seed, texts)
        missed += pooled_blind_auroc([(scores[truth], scores[~truth])]).excludes(0.5)
    assert missed / 24 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 24)


def test_trees_see_what_no_line_tells() -> None:
    """Members lie on two sides of the others: on average they are the same."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1000, 3))
    truth = np.abs(features[:, 0]) > norm.ppf(0.75)
    family = BlindFamily(features)
    assert family.best(np.arange(1000), truth) == "trees"
    assert blind_baseline(features[truth], features[~truth]).low > 0.9


def test_texts_are_one_for_each_record() -> None:
    with pytest.raises(ConfigError, match="There are 50 texts for 100 records"):
        blind_baseline(NOTHING, NOTHING, member_texts=["a"] * 50)
    with pytest.raises(ConfigError, match="nothing to tell them by"):
        blind_baseline(NOTHING, NOTHING)


@pytest.mark.parametrize(
    ("members", "others", "said"),
    [
        (np.ones((1, 2)), np.ones((9, 2)), "there are 1 members and 9 non-members"),
        (np.ones((5, 2)), np.ones((5, 3)), "have 2 features and non-members 3"),
        (np.full((5, 2), np.nan), np.ones((5, 2)), "those of 5 of 10 records are not"),
    ],
)
def test_what_cannot_be_estimated_is_refused(
    members: np.ndarray, others: np.ndarray, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        blind_baseline(members, others)
