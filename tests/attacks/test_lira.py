import numpy as np
import pytest
from scipy.stats import norm

from privaudit.statistics import shadow_comparison
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.roc import auroc
from privaudit.statistics.shadow_comparison import (
    Variance,
    offline_scores,
    online_scores,
)
from tests.golden import golden


def first(chosen: np.ndarray, count: int) -> np.ndarray:
    """Keep the first models of each record only, as the reference does."""
    return chosen & (chosen.cumsum(axis=0) <= count)


@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_scores_with_a_deviation_for_each_record_are_the_golden_ones(
    case: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference's sign is the other way round, and it averages augmentations."""
    monkeypatch.setattr(shadow_comparison, "FLAT", 1e-30)
    numbers = golden("lira", f"c{case}_")
    is_in = first(numbers["keep"], int(numbers["n_in_used"]))
    is_out = first(~numbers["keep"], int(numbers["n_out_used"]))
    for row, target in enumerate(numbers["check_scores"]):
        found = []
        for turn in range(target.shape[1]):
            own, shadows = target[:, turn], numbers["scores"][:, :, turn]
            if mode == "online":
                found.append(online_scores(own, shadows, is_in, is_out))
            else:
                found.append(offline_scores(own, shadows, is_out))
        wanted = {
            "online": -numbers["correct_online_var"][row],
            "offline": -numbers["formula_offline_onesided_logsf"][row],
        }[mode]
        np.testing.assert_allclose(np.mean(found, axis=0), wanted, rtol=1e-9)


@pytest.mark.parametrize("variance", ["global-published", "global"])
def test_scores_with_one_deviation_are_the_golden_ones(variance: str) -> None:
    numbers = golden("lira", "c0_")
    name = {
        "global-published": "correct_online_fixvar",
        "global": "within_online_fixvar",
    }[variance]
    for row in range(2):
        found = online_scores(
            numbers["check_scores"][row, :, 0],
            numbers["scores"][:, :, 0],
            numbers["keep"],
            ~numbers["keep"],
            variance,  # type: ignore[arg-type]
        )
        np.testing.assert_allclose(found, -numbers[name][row], rtol=1e-9)


def test_the_ratio_is_that_of_two_normal_densities() -> None:
    shadows = np.array([[1.0], [3.0], [-2.0], [0.0]])
    is_in = np.array([[True], [True], [False], [False]])
    found = online_scores(np.array([2.5]), shadows, is_in, ~is_in)
    wanted = norm.logpdf(2.5, 2, 1) - norm.logpdf(2.5, -1, 1)
    assert found == pytest.approx(wanted)


def test_far_above_all_shadows_is_finite_and_grows() -> None:
    """-log Pr of 100 deviations: the plain probability is 0."""
    shadows = np.array([[0.0], [1.0], [-1.0]])
    out = np.ones((3, 1), bool)
    targets = [np.array([x]) for x in (1.0, 50.0, 99.0)]
    found = [float(offline_scores(x, shadows, out)[0]) for x in targets]
    assert found == sorted(found)
    assert np.isfinite(found).all()


def test_shadows_that_all_say_the_same_say_nothing() -> None:
    shadows, is_in = np.full((6, 5), 0.3), np.arange(30).reshape(6, 5) % 2 == 0
    found = online_scores(np.full(5, 0.3), shadows, is_in, ~is_in)
    np.testing.assert_array_equal(found, 0)


def test_a_record_that_no_shadow_trained_on_has_a_finite_score() -> None:
    rng = np.random.default_rng(0)
    shadows, is_in = rng.normal(size=(6, 4)), np.zeros((6, 4), bool)
    for variance in ("per-record", "global", "global-published"):
        found = online_scores(shadows[0], shadows, is_in, ~is_in, variance)
        assert np.isfinite(found).all()


AUTO: Variance = "auto"


@pytest.mark.parametrize(("models", "same"), [(63, "global"), (64, "per-record")])
def test_from_64_shadows_on_each_record_has_a_deviation(
    models: int, same: Variance
) -> None:
    rng = np.random.default_rng(0)
    shadows, is_in = rng.normal(size=(models, 9)), rng.random((models, 9)) < 0.5
    target = shadows[0]
    found, wanted = (
        [
            online_scores(target, shadows, is_in, ~is_in, variance),
            offline_scores(target, shadows, ~is_in, variance),
        ]
        for variance in (AUTO, same)
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_where_difficulty_varies_it_beats_the_loss(mode: str) -> None:
    """Records' own levels spread ten times as far as training moves them."""
    rng = np.random.default_rng(1)
    records, models, gain = 400, 64, 1.5
    level = rng.normal(scale=10, size=records)
    is_in = rng.random((models + 1, records)) < 0.5
    signals = level + gain * is_in + rng.normal(size=(models + 1, records))
    target, truth = signals[0], is_in[0]
    if mode == "online":
        scores = online_scores(target, signals[1:], is_in[1:], ~is_in[1:], "global")
    else:
        scores = offline_scores(target, signals[1:], ~is_in[1:], "global")
    assert auroc(scores[truth], scores[~truth]).value == pytest.approx(0.85, abs=0.05)
    assert pooled_paired_auroc_difference([(scores, target, truth)]).estimate.low > 0.15
