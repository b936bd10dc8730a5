import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit, logit
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from privaudit.core.errors import ConfigError
from privaudit.statistics.roc import auroc, delong_components, pooled_auroc
from privaudit.statistics.verdict import judge_leak
from privaudit_tools.benchmarks.tiny_clients import miss_rates
from tests.golden import golden

# Whole numbers so that there are ties, small so that monotone maps stay exact.
SCORES = st.integers(1, 12).flatmap(
    lambda size: arrays(np.float64, size, elements=st.integers(-5, 5).map(float))
)


@given(members=SCORES, others=SCORES)
def test_placements_equal_the_count_over_all_pairs(
    members: np.ndarray, others: np.ndarray
) -> None:
    ours = delong_components(members, others)
    wins = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    np.testing.assert_allclose(ours.members, wins.mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(ours.nonmembers, wins.mean(axis=0), atol=1e-12)


@given(members=SCORES, others=SCORES)
def test_auroc_equals_sklearns(members: np.ndarray, others: np.ndarray) -> None:
    truth = np.arange(len(members) + len(others)) < len(members)
    expected = roc_auc_score(truth, np.concatenate([members, others]))
    assert auroc(members, others).value == pytest.approx(expected, abs=1e-12)


@given(members=SCORES, others=SCORES)
def test_swapping_the_classes_mirrors_the_interval(
    members: np.ndarray, others: np.ndarray
) -> None:
    ours, mirror = auroc(members, others), auroc(others, members)
    assert ours.value == pytest.approx(1 - mirror.value, abs=1e-12)
    assert ours.low == pytest.approx(1 - mirror.high, abs=1e-9)


@given(members=SCORES, others=SCORES)
def test_only_the_order_of_scores_counts(
    members: np.ndarray, others: np.ndarray
) -> None:
    assert auroc(np.exp(members) - 7, np.exp(others) - 7) == auroc(members, others)


@given(members=SCORES, others=SCORES, confidence=st.floats(0.5, 0.999))
def test_the_interval_holds_its_value_and_has_a_width(
    members: np.ndarray, others: np.ndarray, confidence: float
) -> None:
    ours = auroc(members, others, confidence)
    assert 0 <= ours.low <= ours.value <= ours.high <= 1
    assert ours.high - ours.low > 1e-3


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("scores", [1, 2])
def test_auroc_equals_the_golden_delong(case: int, scores: int) -> None:
    known = golden("roc", f"c{case}_")
    members = known[f"scores{scores}_pos"]
    others = known[f"scores{scores}_neg"]
    ours = auroc(members, others)
    assert ours.value == pytest.approx(known[f"auroc{scores}"], abs=1e-10)
    assert delong_components(members, others).delong_variance == pytest.approx(
        known[f"delong_var{scores}"], abs=1e-10
    )
    interval = known.get(f"ci95_logit_{scores}")
    if interval is not None:  # absent where the classes are perfectly separated
        low, high = interval
        # Towards 1/2 the end is that of tilted samples, away from it the logit's or wider.
        tilted, exact = 0.02 * (high - low), 1e-10
        towards, away = (tilted, exact) if ours.value > 0.5 else (exact, tilted)
        assert ours.low <= low + towards
        assert ours.high >= high - away
        assert ours.high - ours.low <= 1.1 * (high - low)


def test_perfect_separation_is_thirty_tosses_won() -> None:
    """The bound solves θ^30 = 0.025."""
    ours = auroc(np.ones(30), np.zeros(40))
    assert (ours.value, ours.high) == (1, 1)
    assert ours.low**30 == pytest.approx(0.025)
    assert auroc(np.zeros(30), np.ones(40)).high == pytest.approx(1 - ours.low)


def test_a_small_class_that_ties_is_not_certain() -> None:
    """As DeLong has it 0.525 [0.504, 0.546]: the non-members do not vary."""
    ours = auroc(1.0 * (np.arange(100) < 5), np.zeros(10))
    assert ours.value == 0.525
    assert ours.low < 0.46
    assert judge_leak(ours).kind == "underpowered"
    assert ours.method.endswith("110 of 110 scores tie")


@pytest.mark.parametrize("sizes", [(266, 273), (500, 500)])
def test_in_balanced_classes_the_interval_is_delongs(
    sizes: tuple[int, int], rng: np.random.Generator
) -> None:
    for shift in (0.0, 0.5, 1.8):
        members, others = rng.normal(size=sizes[0]) + shift, rng.normal(size=sizes[1])
        placed, ours = delong_components(members, others), auroc(members, others)
        error = np.sqrt(placed.delong_variance) / (ours.value * (1 - ours.value))
        low, high = expit(logit(ours.value) + 1.96 * error * np.array([-1, 1]))
        assert (ours.high - ours.low) / (high - low) == pytest.approx(1, abs=0.03)


def test_several_small_clients_that_tie_raise_few_false_alarms(
    rng: np.random.Generator,
) -> None:
    """Five clients of 30 + 3; DeLong alone calls 16 of 100 such audits a leak."""
    alarms = [
        judge_leak(
            pooled_auroc(
                [
                    (1.0 * (rng.random(30) < 0.05), 1.0 * (rng.random(3) < 0.05))
                    for _ in range(5)
                ]
            )
        ).kind
        == "leaks"
        for _ in range(400)
    ]
    assert np.mean(alarms) <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 400)


def test_equal_scores_tell_nothing_and_are_not_certain_of_it() -> None:
    """Thirty disjoint pairs tie: more than 11.6 % that do not are ruled out."""
    ours = auroc(np.zeros(30), np.zeros(30))
    untied = 1 - 0.025 ** (1 / 30)
    assert ours.value == 0.5
    assert (ours.low, ours.high) == pytest.approx(((1 - untied) / 2, (1 + untied) / 2))
    ten = pooled_auroc([(np.zeros(30), np.zeros(30)), (np.ones(10), np.ones(10))])
    assert ours.low < ten.low < 0.5
    one = pooled_auroc([(np.zeros(30), np.zeros(30)), (np.arange(9.0), np.arange(9.0))])
    assert one.low < ours.low


@pytest.mark.parametrize(("rate", "other"), [(0.01, 0.0), (0.05, 0.0), (0.08, 0.02)])
def test_where_all_scores_tie_rare_exceptions_are_covered(
    rate: float, other: float
) -> None:
    """Of 40 + 40 that are 0 or rarely 1: the chance that all tie and it misses."""
    found, truth = auroc(np.zeros(40), np.zeros(40)), 0.5 + (rate - other) / 2
    chance = ((1 - rate) * (1 - other)) ** 40
    assert found.low <= truth <= found.high or chance <= 0.025


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        ([], [0.0], "0 members and 1 non-members"),
        ([0.0], [], "1 members and 0 non-members"),
        ([0.0, np.nan], [np.inf], "2 of 3 are not"),
    ],
)
def test_scores_that_say_nothing_are_refused(
    members: list[float], others: list[float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        auroc(np.array(members), np.array(others))


def test_pooling_weights_clients_by_their_pairs() -> None:
    """AUROC 1 on 2 pairs and 0 on 4: a third."""
    alice = np.array([2.0, 3.0]), np.array([1.0])
    bob = np.array([0.0, 0.0]), np.array([1.0, 1.0])
    ours = pooled_auroc([alice, bob])
    assert ours.value == pytest.approx(1 / 3)
    assert ours.n == (4, 3)


def test_pooling_one_client_is_its_auroc(rng: np.random.Generator) -> None:
    members, others = rng.normal(size=20) + 1, rng.normal(size=30)
    ours, single = pooled_auroc([(members, others)]), auroc(members, others)
    assert (ours.value, ours.low, ours.high) == pytest.approx(
        (single.value, single.low, single.high), abs=1e-12
    )


def test_scores_of_different_clients_are_never_compared() -> None:
    """Each client is at chance; thrown together, the scale alone gives 0.75."""
    alice = np.array([10.0, 11.0, 10.0, 11.0]), np.array([10.0, 11.0])
    bob = np.array([0.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0])
    assert pooled_auroc([alice, bob]).value == 0.5


def test_a_client_without_non_members_is_left_out_and_named(
    rng: np.random.Generator,
) -> None:
    both = rng.normal(size=20), rng.normal(size=20)
    ours = pooled_auroc([both, (rng.normal(size=5), np.array([]))])
    assert ours.n == (20, 20)
    assert "1 left out" in ours.method
    with pytest.raises(ConfigError, match="None of 1 clients"):
        pooled_auroc([(np.array([]), np.array([1.0]))])


def test_new_clients_of_equal_size_get_students_interval(
    rng: np.random.Generator,
) -> None:
    groups = [(rng.normal(size=10), rng.normal(size=10)) for _ in range(5)]
    values = np.array([auroc(*group).value for group in groups])
    ours = pooled_auroc(groups, "new")
    half = 2.776445 * values.std(ddof=1) / np.sqrt(5)
    assert (ours.low, ours.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=1e-6
    )
    assert ours.n == (5,)


def test_one_client_says_nothing_about_new_ones(rng: np.random.Generator) -> None:
    ours = pooled_auroc([(rng.normal(size=10), rng.normal(size=10))], "new")
    assert ours.unresolved == "needs 2 clients, has 1"


def test_one_pair_out_of_order_among_many_clients_is_hardly_less_than_none() -> None:
    right = np.arange(15.0, 30.0), np.arange(14.0)
    wrong = right[0], np.r_[np.arange(13.0), 15.5]
    all_right = pooled_auroc([right] * 12)
    one_wrong = pooled_auroc([wrong] + [right] * 11)
    assert abs(one_wrong.low - all_right.low) < 0.01
    mirrored = pooled_auroc([wrong[::-1]] + [right[::-1]] * 11)
    assert mirrored.high == pytest.approx(1 - one_wrong.low)


@pytest.mark.parametrize(("clients", "size"), [(12, 15), (30, 3), (1, 40)])
def test_what_is_nearly_certain_is_not_overstated(
    clients: int, size: int, rng: np.random.Generator
) -> None:
    """Few non-members stand above all members: true AUROC 0.99, one end at 97.5 %."""
    over = 0
    for _ in range(200):
        odd = rng.random((clients, size)) < 0.01
        groups = [(rng.random(size), np.where(o, 2.0, -1.0)) for o in odd]
        over += pooled_auroc(groups).low > 0.99
    assert over <= 200 * 0.025 + 3 * np.sqrt(200 * 0.025)


@pytest.mark.parametrize("population", ["these", "new"])
def test_perfect_clients_do_not_make_a_perfect_interval(population: str) -> None:
    perfect = np.ones(10), np.zeros(10)
    ours = pooled_auroc([perfect] * 3, "these" if population == "these" else "new")
    assert (ours.value, ours.high) == (1, 1)
    assert ours.low**30 == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("clients", "smallest", "largest", "levels"),
    [
        pytest.param(1, 20, 20, 1000, id="one client of 20"),
        pytest.param(3, 20, 60, 1000, id="3 clients of 20-60"),
        pytest.param(5, 20, 60, 2, id="5 clients of 20-60, yes or no"),
        pytest.param(10, 20, 60, 1000, id="10 clients of 20-60"),
        pytest.param(5, 2, 10, 3, id="5 clients of 2-10, three levels"),
    ],
)
def test_intervals_cover_a_half_when_the_coin_is_flipped_anew(
    clients: int, smallest: int, largest: int, levels: int, rng: np.random.Generator
) -> None:
    """Scores are fixed and membership is redrawn, 20 times on each of 30 runs."""
    trials, covered, alarms = 600, 0, 0
    for trial in range(trials):
        if trial % 20 == 0:
            sizes = rng.integers(smallest, largest + 1, clients)
            scores = [rng.integers(levels, size=size).astype(float) for size in sizes]
        coins = [rng.random(len(s)) < 0.5 for s in scores]
        groups = [(s[c], s[~c]) for s, c in zip(scores, coins, strict=True)]
        if not any(len(a) and len(b) for a, b in groups):
            trials -= 1
            continue
        ours = pooled_auroc(groups)
        covered += not ours.excludes(0.5)
        alarms += ours.low > 0.5
    error = np.sqrt(0.05 * 0.95 / trials)
    assert covered / trials >= 0.95 - 3 * error
    assert alarms / trials <= 0.025 + 3 * error


@pytest.mark.parametrize("true_auroc", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("size", [15, 100])
def test_intervals_cover_a_true_leak(
    true_auroc: float, size: int, rng: np.random.Generator
) -> None:
    shift = np.sqrt(2) * norm.ppf(true_auroc)
    covered = [
        not auroc(rng.normal(size=size) + shift, rng.normal(size=size)).excludes(
            true_auroc
        )
        for _ in range(600)
    ]
    assert np.mean(covered) >= 0.92


@pytest.mark.parametrize(("clients", "smallest"), [(3, 20), (5, 4), (10, 4)])
def test_intervals_for_new_clients_cover_their_mean(
    clients: int, smallest: int, rng: np.random.Generator
) -> None:
    """Clients differ: each has a shift of its own, of mean 0, so the mean is 0.5."""
    covered = []
    for _ in range(500):
        groups = []
        for size in rng.integers(smallest, 61, clients):
            members = min(max(int(rng.binomial(size, 0.5)), 1), size - 1)
            shifted = rng.normal(size=members) + 0.5 * rng.normal()
            groups.append((shifted, rng.normal(size=size - members)))
        covered.append(not pooled_auroc(groups, "new").excludes(0.5))
    assert np.mean(covered) >= 0.925


def test_pairs_of_one_client_each_vary_as_tosses_do() -> None:
    """180 of 200 clients rank their one pair rightly: a logit interval of 200 tosses."""
    right, wrong = (np.ones(1), np.zeros(1)), (np.zeros(1), np.ones(1))
    ours = pooled_auroc([right] * 180 + [wrong] * 20)
    error = np.sqrt(0.09 / 199) / 0.09
    assert ours.high == pytest.approx(expit(logit(0.9) + 1.959964 * error))
    assert ours.low == pytest.approx(expit(logit(0.9) - 1.959964 * error), abs=1e-3)


def test_tiny_clients_raise_few_false_alarms() -> None:
    """Of clients with 2 to 4 candidates most have a class of one."""
    above, below, leaks, _ = miss_rates(40, 60, 0.5)
    assert above + below <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)
    assert leaks <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / 60)
