import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from privaudit import Auditor, load_run
from privaudit.auditing.attack_result import (
    AttackResult,
    ClientScores,
    evaluate_scores,
)
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import LimitError
from privaudit.recording.origins.scores import SCORES
from privaudit.report.page import render_report
from privaudit.report.tables.parts import part_remarks
from privaudit.statistics.estimate import clopper_pearson
from privaudit_labs.shift import panoramia
from privaudit_labs.shift.panoramia import (
    PANORAMIA,
    beyond_baseline,
    compared,
    odds_bound,
)


def drawn(
    shift: float, leak: float, seed: int, count: int = 400
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is known without a model, what with it, and the truth."""
    rng = np.random.default_rng(seed)
    truth = rng.random(count) < 0.5
    known = rng.normal(size=(count, 2))
    known[:, 0] += shift * truth
    score = known[:, 0] + leak * truth + rng.normal(size=count)
    return known, np.column_stack([known, score]), truth


def test_a_shift_alone_is_nothing_beyond_the_baseline() -> None:
    found = compared(*drawn(shift=2.0, leak=0.0, seed=0))
    assert found.baseline.low > 0.8
    assert not found.gain.low > 0
    assert found.baseline_bound > 1


def test_what_only_the_model_tells_is_beyond_it() -> None:
    found = compared(*drawn(shift=0.0, leak=3.0, seed=0))
    assert not found.baseline.low > 0.5
    assert found.gain.low > 0.3
    assert found.excess == found.bound - found.baseline_bound > 1


def test_both_together_are_distinguished() -> None:
    found = compared(*drawn(shift=1.0, leak=2.0, seed=0))
    assert found.baseline.low > 0.5
    assert found.gain.low > 0


def test_false_alarms_of_the_gain_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 intervals at most seven lie above 0, and of AUROCs' 11 miss 0.5.

    Without the choice between two classifiers, which takes most of the time: 1,000
    nulls with it are in bench_nulls. By DeLong's own variance 14 and 12 miss.
    """
    monkeypatch.setattr(panoramia, "_skill", lambda *_: 0.5)
    found = [compared(*drawn(0.0, 0.0, seed, count=60)) for seed in range(100)]
    above = np.mean([one.gain.low > 0 for one in found])
    assert above <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 100)
    for name in ("baseline", "with_model"):
        missed = np.mean([getattr(one, name).excludes(0.5) for one in found])
        assert missed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 100)


def spread(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members vary twice as much, and the score tells how far a record lies out."""
    rng = np.random.default_rng(seed)
    truth = rng.random(count) < 0.5
    known = rng.normal(size=(count, 2))
    known[truth, 0] *= 2
    score = rng.normal(size=count) - known[:, 0] ** 2
    known, score = known / known.std(axis=0), score / score.std()
    return known, np.column_stack([known, score]), truth


def test_a_difference_in_spread_is_nothing_beyond_the_baseline() -> None:
    for seed in range(2):
        found = compared(*spread(seed))
        assert found.baseline.low > 0.55
        assert not found.gain.low > 0


def test_records_of_a_cluster_are_in_one_fold_and_widen_the_interval() -> None:
    """A patient's five records are alike: fits to four of them know the fifth."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(60), 5)
    truth = rng.random(300) < rng.beta(0.5, 0.5, 60)[patient]
    known = rng.normal(size=(300, 1))
    score = rng.normal(size=60)[patient]
    found = compared(known, np.column_stack([known, score]), truth, patient)
    assert not found.gain.low > 0
    alone = compared(known, np.column_stack([known, truth + known[:, 0]]), truth)
    alike = compared(
        known, np.column_stack([known, truth + known[:, 0]]), truth, patient
    )
    assert alike.gain.low > 0.2
    assert alike.bound < alone.bound


def test_few_clusters_are_no_error() -> None:
    """All members of a fold's rest may be of one kind: then nothing is fitted."""
    truth = np.arange(40) % 8 == 0
    truth[:8] = True
    found = compared(np.eye(40)[:, :2], np.eye(40)[:, :3], truth, np.arange(40) // 8)
    assert not found.gain.low > 0


def test_odds_by_hand() -> None:
    """Of 10 guesses all are right: p is at least 0.025^(1/10), against odds of 1:3."""
    truth = np.arange(100) < 25
    low = 0.025**0.1
    bound = odds_bound(np.linspace(1, 0, 100), truth)
    assert bound == pytest.approx(math.log(3 * low / (1 - low)))
    assert odds_bound(np.linspace(0, 1, 100), truth) == 0.0


def test_a_randomised_response_is_bounded_from_below() -> None:
    """Guesses that are right with odds of e to 1: the bound lies above rarely."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(400):
        truth = rng.random(300) < 0.5
        right = rng.random(300) < math.e / (1 + math.e)
        missed += odds_bound(np.where(right, truth, ~truth).astype(float), truth) > 1
    assert missed / 400 <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 400)


def test_ties_at_the_cut_count_by_their_share_wherever_they_stand() -> None:
    truth = np.arange(400) < 200
    for place in (truth, ~truth):
        assert odds_bound(np.zeros(400), place) == 0.0
    scores = np.where(np.arange(400) < 20, 1.0, 0.0)  # 20 sure ones, 20 of 380 drawn
    orders = [np.random.default_rng(seed).permutation(400) for seed in range(3)]
    bounds = {odds_bound(scores[order], truth[order]) for order in orders}
    low = clopper_pearson(np.array([29.0]), 40, 0.95)[0][0]  # 20, and 9 of 9.5
    assert len(bounds) == 1
    assert bounds.pop() == pytest.approx(math.log(low / (1 - low)))


def scored(
    scores: np.ndarray, truth: np.ndarray, orders: list[np.ndarray]
) -> AttackResult:
    """An attack on two clients, whose candidates come in some order."""
    halves = np.split(np.arange(len(truth)), 2)
    clients = [
        ClientScores(
            f"client-{i}",
            part[order],
            part[order] % 3,
            scores[part[order]],
            scores[part[order]] > 0,
            truth[part[order]],
        )
        for i, (part, order) in enumerate(zip(halves, orders, strict=True))
    ]
    return evaluate_scores("loss", "", "none", clients)


@pytest.mark.parametrize("constant", [True, False])
def test_numbers_do_not_depend_on_the_order_of_candidates(constant: bool) -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(400) < 0.5
    before = np.zeros(400) if constant else rng.normal(size=400)
    after = before if constant else before + truth
    halves = np.split(truth, 2)
    orders = [
        [np.arange(200)] * 2,
        [np.argsort(~half, kind="stable") for half in halves],
        [np.argsort(half, kind="stable") for half in halves],
    ]
    found = [
        beyond_baseline(scored(before, truth, each), scored(after, truth, each))
        for each in orders
    ]
    assert found[0] is not None
    assert found[0] == found[1] == found[2]
    assert found[0].baseline_bound == 0


def test_a_thousand_classes_take_little_memory() -> None:
    scores, known = np.random.default_rng(0).random((2, 2000))
    members, others = np.split(scores, 2)
    tracemalloc.start()
    audit = Auditor.from_scores(
        members, others, classes=np.arange(2000) % 1000, known=known
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert audit.part(PANORAMIA) is not None
    assert peak < 2000 * 1000 * 8  # of one dense table, of which there were several


def test_what_is_known_is_bounded_before_it_is_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRIVAUDIT_MAX_BASELINE", "99")
    scores = np.arange(50.0)
    with pytest.raises(
        LimitError, match=r"100 numbers.*set PRIVAUDIT_MAX_BASELINE=100"
    ):
        Auditor.from_scores(scores[::2], scores[1::2], known=np.ones((50, 2)))


def test_scores_whose_squares_overflow_are_fitted_as_any() -> None:
    scores, known = np.random.default_rng(0).normal(size=(2, 60))
    found = [
        Auditor.from_scores(*np.split(s, 2), known=known).part(PANORAMIA)
        for s in (scores, scores * 1e307)
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert found[1].with_model.value == pytest.approx(found[0].with_model.value)


def known_of(
    leak: float, seed: int = 0, count: int = 300, repeats: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, what is known without the model, and the truth: members are later ones."""
    rng = np.random.default_rng(seed)
    truth = np.arange(count) < count // 2
    year = rng.normal(size=count) + truth
    before = year + rng.normal(size=count) / 2
    scores = before + leak * truth + rng.normal(size=count)
    table = np.column_stack([year, before])
    return scores.repeat(repeats), table.repeat(repeats, 0), truth.repeat(repeats)


@pytest.mark.parametrize("leak", [0.0, 2.0])
def test_what_scores_tell_beyond_what_is_known_without_the_model(
    leak: float, tmp_path: Path
) -> None:
    """Members differ from the start: that alone is nothing, and a leak is seen still."""
    scores, known, truth = known_of(leak)
    audit = Auditor.from_scores(scores[truth], scores[~truth], known=known)
    found = audit.part(PANORAMIA)
    assert found is not None
    assert audit.auroc.low > 0.5
    assert found.baseline.low > 0.6
    assert (found.gain.low > 0.05) == (leak > 0)
    save_audit(audit, tmp_path / "known")
    again = restore_audit(read_audit(load_run(tmp_path / "known"), SCORES))
    assert again.part(PANORAMIA) == found
    said = " ".join(part_remarks(again))
    assert ("tell members beyond it" in said) == (leak > 0)
    assert "no bound on epsilon" in render_report([again])


def test_a_coin_is_doubted_where_members_differ_without_the_model() -> None:
    scores, known, truth = known_of(0.0)
    by_coin = Auditor.from_scores(
        scores[truth], scores[~truth], known=known, sampling="coin"
    )
    assert "look into the coin" in " ".join(part_remarks(by_coin))
    alone = Auditor.from_scores(scores[truth], scores[~truth])
    assert PANORAMIA.name not in alone.parts
    few = Auditor.from_scores([1.0, 2.0], [0.0, 1.0], known=np.arange(4))
    assert few.part(PANORAMIA) is None
    assert "at least five of each" in " ".join(part_remarks(few))


def test_what_is_known_of_records_that_share_a_coin_counts_once() -> None:
    scores, known, truth = known_of(2.0, repeats=3)
    each = [scores[truth], scores[~truth]]
    whole = Auditor.from_scores(*each, known=known, groups=np.arange(900) // 3)
    once = Auditor.from_scores(each[0][::3], each[1][::3], known=known[::3])
    assert whole.part(PANORAMIA) == once.part(PANORAMIA)
