"""Records that resemble one another, each with a coin: intervals count clusters."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from privaudit import Auditor
from privaudit.auditing.attack_result import ClientScores, evaluate_scores
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.runs.run import load_run
from privaudit.statistics.comparisons import paired_accuracy_difference, paired_auroc_at
from privaudit.statistics.estimate import effective_count
from privaudit.statistics.roc import (
    Placements,
    auroc,
    class_averaged_success,
    delong_components,
    pooled_auroc,
    success_rate,
    tpr_at_fpr,
)
from privaudit_tools.selftest.bootstrap import bootstrap_auroc

CORRELATIONS = (0.2, 0.5, 0.9)
CLUSTERS = 80


def draw(
    rng: np.random.Generator, correlation: float, auroc: float, *, by_cluster: bool
) -> ClientScores:
    """Draw scores of clusters of 1 to 9 records, with a coin for each or for all.

    Args:
        rng: Of the draw.
        correlation: Of two records of a cluster.
        auroc: Of members and others of different clusters.
        by_cluster: Whether a cluster has one coin.
    """
    cluster = np.repeat(np.arange(CLUSTERS), rng.integers(1, 10, CLUSTERS))
    coins = rng.random(CLUSTERS if by_cluster else len(cluster)) < 0.5
    truth = coins[cluster] if by_cluster else coins
    shift = np.sqrt(2) * ndtri(auroc)
    effect = rng.normal(size=CLUSTERS)[cluster] * np.sqrt(correlation)
    scores = effect + rng.normal(size=len(cluster)) * np.sqrt(1 - correlation)
    scores += shift * truth
    rows, labels = np.arange(len(cluster)), np.zeros(len(cluster), int)
    return ClientScores(
        "client-0", rows, labels, scores, scores > shift / 2, truth, cluster=cluster
    )


def draws(
    correlation: float, auroc: float, trials: int, *, by_cluster: bool
) -> Iterator[ClientScores]:
    rng = np.random.default_rng([int(10 * correlation), int(100 * auroc), by_cluster])
    for _ in range(trials):
        yield draw(rng, correlation, auroc, by_cluster=by_cluster)


@pytest.mark.parametrize("by_cluster", [False, True])
@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_intervals_by_cluster_cover_as_they_say(
    correlation: float, by_cluster: bool
) -> None:
    """tools/privaudit_tools/benchmarks/bench_clusters.py prints the table with more draws."""
    trials, truth = 150, 0.75
    right = ndtr(ndtri(truth) / np.sqrt(2))
    missed = {"AUROC": 0, "success": 0, "TPR": 0}
    for one in draws(correlation, truth, trials, by_cluster=by_cluster):
        assert one.clusters is not None
        found = auroc(*one.groups, clusters=one.clusters)
        missed["AUROC"] += found.excludes(truth)
        rate = success_rate(one.is_member, one.guesses, clusters=one.cluster)
        missed["success"] += rate.excludes(right)
        tpr = tpr_at_fpr(*one.groups, 0.2, clusters=one.clusters)
        missed["TPR"] += tpr.excludes(ndtr(np.sqrt(2) * ndtri(truth) - ndtri(0.8)))
    most = trials * (0.05 + 3 * np.sqrt(0.05 * 0.95 / trials))
    assert max(missed.values()) <= most, missed


def test_without_clusters_a_coin_for_each_cluster_covers_too_rarely() -> None:
    found = [
        auroc(*one.groups).excludes(0.75)
        for one in draws(0.9, 0.75, 150, by_cluster=True)
    ]
    assert np.mean(found) > 0.2


def test_clusters_of_one_record_are_none() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(size=40) + 0.5, rng.normal(size=50)
    alone = np.arange(40), np.arange(40, 90)
    plain = delong_components(members, others)
    clustered = delong_components(members, others, clusters=alone)
    assert clustered.delong_variance == pytest.approx(plain.delong_variance)
    assert clustered.sizes == plain.sizes
    assert effective_count(members > 0, alone[0]) == pytest.approx(40)
    assert effective_count(np.ones(6, bool), np.array([0, 0, 1, 1, 2, 2])) == 3


def test_the_variance_by_hand() -> None:
    """Two clusters with a member and another each: sums of deviations, squared."""
    placed = Placements(
        np.array([1.0, 0.5]), np.array([0.5, 1.0]), None, (np.arange(2), np.arange(2))
    )
    x = (placed.members - 0.75) / 2
    y = (placed.nonmembers - 0.75) / 2
    by_hand = 2 * (x @ x) + 2 * (y @ y) + 2 * 2 * (x @ y)
    assert placed.delong_variance == pytest.approx(by_hand)
    assert by_hand == pytest.approx(0.0)  # each cluster's errors cancel


def test_the_bootstrap_draws_whole_clusters() -> None:
    (one,) = draws(0.9, 0.75, 1, by_cluster=True)
    rng = np.random.default_rng(0)
    plain = bootstrap_auroc(*one.groups, rng)
    whole = bootstrap_auroc(*one.groups, rng, clusters=one.clusters)
    formula = auroc(*one.groups, clusters=one.clusters)
    assert whole.value == plain.value
    assert whole.high - whole.low > 1.5 * (plain.high - plain.low)
    assert whole.high - whole.low == pytest.approx(formula.high - formula.low, rel=0.2)


def test_the_other_intervals_take_clusters_too() -> None:
    (one,) = draws(0.9, 0.75, 1, by_cluster=True)
    bare = ClientScores(
        one.client, one.records, one.labels, one.scores, one.guesses, one.is_member
    )
    wide, narrow = (evaluate_scores("a", "", "", [c]) for c in (one, bare))
    assert pooled_auroc([one.groups], clusters=[one.clusters]) == wide.auroc
    for name in ("auroc", "success", "success_plain", "advantage"):
        first, second = getattr(wide, name), getattr(narrow, name)
        assert first.value == second.value
        assert first.high - first.low > 1.2 * (second.high - second.low), name
    classes = np.arange(len(one.scores)) % 3
    by_class = [
        class_averaged_success(one.is_member, one.guesses, classes, clusters=clusters)
        for clusters in (one.cluster, None)
    ]
    assert by_class[0].low < by_class[1].low
    assert "clusters" in wide.auroc.method
    other = one.scores + np.random.default_rng(1).normal(size=CLUSTERS)[one.cluster]
    groups = [(one.scores, other, one.is_member)]
    paired = [paired_auroc_at(groups, [c])(0.95) for c in (one.cluster, None)]
    assert paired[0].p_value > paired[1].p_value
    right, wrong = one.guesses == one.is_member, (other > 0) == one.is_member
    both = [
        paired_accuracy_difference(right, wrong, 0.95, c) for c in (one.cluster, None)
    ]
    assert both[0].estimate.low < both[1].estimate.low
    assert both[0].p_value >= both[1].p_value


def test_scores_with_groups_of_both_kinds_are_audited_by_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that one coin cannot have chosen: from scores to a folder and back."""
    (one,) = draws(0.5, 0.75, 1, by_cluster=False)
    members, others = one.groups
    assert one.clusters is not None
    names = np.concatenate(one.clusters).astype(str)
    audit = Auditor.from_scores(members, others, groups=names, sampling="coin")
    assert audit.auroc == pooled_auroc([one.groups], clusters=[one.clusters])
    assert sum(audit.auroc.n) == len(names)
    monkeypatch.chdir(tmp_path)
    save_audit(audit, "runs/mine")
    again = restore_audit(read_audit(load_run("runs/mine"), "scores"))
    assert again.to_dict()["attack_results"] == audit.to_dict()["attack_results"]


@pytest.mark.parametrize("sizes", [[50] + [1] * 29, [50, 30, 20, 10] + [2] * 20])
def test_a_cluster_that_is_most_of_a_class_is_hardly_more_than_one_record(
    sizes: list[int], rng: np.random.Generator
) -> None:
    """Members of a cluster are all above the others, or all below; true AUROC 0.7."""
    cluster, others = np.repeat(np.arange(len(sizes)), sizes), np.ones(100)
    over = 0
    for _ in range(200):
        members = 2.0 * (rng.random(len(sizes)) < 0.7)[cluster]
        alike = cluster, 1000 + np.arange(100)
        over += auroc(members, others, clusters=alike).low > 0.7
    assert over <= 200 * 0.025 + 3 * np.sqrt(200 * 0.025)


def test_records_that_recur_in_all_trainings_lengthen_the_interval_by_their_sums() -> (
    None
):
    """The same scores twice are one training: the interval is that of one, not of two."""
    rng = np.random.default_rng(4)
    members, others = rng.normal(0.3, 1, 60), rng.normal(0, 1, 50)
    records = np.arange(60), 60 + np.arange(50)
    once = pooled_auroc([(members, others)])
    again = [(members, others)] * 2
    alike = pooled_auroc(again, clusters=[records] * 2)
    apart = pooled_auroc(
        again, clusters=[records, (records[0] + 200, records[1] + 200)]
    )
    plain = pooled_auroc(again)
    assert apart.high - apart.low == pytest.approx(plain.high - plain.low, rel=0.05)
    assert plain.high - plain.low < 0.75 * (once.high - once.low)
    assert alike.high - alike.low == pytest.approx(once.high - once.low, rel=0.05)
