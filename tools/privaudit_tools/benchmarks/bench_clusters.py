"""Whether intervals hold where records resemble one another in clusters.

Run by ``make bench``; prints the table of docs/selftest.md, with its own draws.
"""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from privaudit.statistics.roc import auroc, success_rate, tpr_at_fpr
from tests.privaudit.statistics.test_clusters import CORRELATIONS, draws

TRIALS = 2000


@pytest.mark.parametrize("by_cluster", [False, True])
@pytest.mark.parametrize("truth", [0.5, 0.75, 0.9])
def test_coverage(truth: float, by_cluster: bool) -> None:
    """How many of 100 intervals miss, counted by cluster, and by record."""
    coin = "cluster" if by_cluster else "record"
    print(f"\nAUROC {truth:g}, a coin for each {coin}, {TRIALS} trials\n")
    print("| correlation | AUROC | by record | TPR at 20 % | success |")
    print("|---|---|---|---|---|")
    right = ndtr(ndtri(truth) / np.sqrt(2))
    rate = ndtr(np.sqrt(2) * ndtri(truth) - ndtri(0.8))
    for correlation in CORRELATIONS:
        missed = np.zeros(4)
        for one in draws(correlation, truth, TRIALS, by_cluster=by_cluster):
            missed += [
                auroc(*one.groups, clusters=one.clusters).excludes(truth),
                auroc(*one.groups).excludes(truth),
                tpr_at_fpr(*one.groups, 0.2, clusters=one.clusters).excludes(rate),
                success_rate(one.is_member, one.guesses, clusters=one.cluster).excludes(
                    right
                ),
            ]
        cells = " | ".join(f"{100 * share:.1f}" for share in missed / TRIALS)
        print(f"| {correlation:g} | {cells} |")
        by_cluster_missed = np.delete(missed, 1).max() / TRIALS
        assert by_cluster_missed <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / TRIALS)
