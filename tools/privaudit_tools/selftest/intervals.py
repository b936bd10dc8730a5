"""Do intervals hold the truth as often as they say?"""

import math

import numpy as np
from scipy.special import ndtr, ndtri

from privaudit.statistics import comparisons, roc
from privaudit_tools.selftest import bootstrap
from privaudit_tools.selftest.check import SelftestCheck, Trial, by_coin, share_of

_GROUP = "intervals at 95 %"


def _noise_in_clients(rng: np.random.Generator) -> bool:
    """Say whether 0.5 is covered on five clients of 4 to 60 candidates."""
    groups = [
        by_coin(rng.normal(size=size), rng)[1:] for size in rng.integers(4, 61, 5)
    ]
    return not roc.pooled_auroc(groups).excludes(0.5)


def _new_clients(rng: np.random.Generator) -> bool:
    """Say whether 0.5 is covered where each client leans its own way."""
    groups = [
        (rng.normal(size=20) + 0.5 * rng.normal(), rng.normal(size=20))
        for _ in range(6)
    ]
    return not roc.pooled_auroc(groups, "new").excludes(0.5)


def _auroc_of(auroc: float) -> Trial:
    shift = math.sqrt(2) * float(ndtri(auroc))

    def covers(rng: np.random.Generator) -> bool:
        members, others = rng.normal(size=(2, 100))
        return not roc.auroc(members + shift, others).excludes(auroc)

    return covers


def _bootstrap(rng: np.random.Generator) -> bool:
    members, others = rng.normal(size=(2, 100))
    shift = math.sqrt(2) * float(ndtri(0.6))
    estimate = bootstrap.bootstrap_auroc(members + shift, others, rng)
    return not estimate.excludes(0.6)


def _rate_at(fpr: float, size: int) -> Trial:
    truth = float(ndtr(1 + ndtri(fpr)))

    def covers(rng: np.random.Generator) -> bool:
        members, others = rng.normal(size=(2, size))
        return not roc.tpr_at_fpr(members + 1, others, fpr).excludes(truth)

    return covers


def _success(rng: np.random.Generator) -> bool:
    truth, guessed = rng.random((2, 100)) < 0.5
    return not roc.success_rate(truth, guessed).excludes(0.5)


def _class_success(rng: np.random.Generator) -> bool:
    truth, guessed = rng.random((2, 100)) < 0.5
    labels = rng.integers(10, size=100)
    return not roc.class_averaged_success(truth, guessed, labels).excludes(0.5)


def _advantage(rng: np.random.Generator) -> bool:
    truth, guessed = rng.random((2, 100)) < 0.5
    return not roc.advantage(truth, guessed).excludes(0.0)


def _paired_aurocs(rng: np.random.Generator) -> bool:
    """Say whether the difference of a leak of 0.7 and of noise is covered."""
    scores, truth = rng.normal(size=(2, 200)), np.arange(200) < 100
    shift = math.sqrt(2) * float(ndtri(0.7))
    difference = comparisons.pooled_paired_auroc_difference(
        [(scores[0] + shift * truth, scores[1], truth)]
    )
    return not difference.estimate.excludes(0.2)


def _paired_accuracies(rng: np.random.Generator) -> bool:
    """Say whether 0 is covered for models that agree on two records of three."""
    right = (
        np.where(rng.random(150) < 0.67, rng.random(150), rng.random((2, 150))) < 0.8
    )
    difference = comparisons.paired_accuracy_difference(right[0], right[1])
    return not difference.estimate.excludes(0)


def _covers(
    name: str, trial: Trial, low: float, high: float, trials: int
) -> SelftestCheck:
    return SelftestCheck(_GROUP, name, low, high, share_of(trial, trials))


CHECKS = (
    _covers(
        "AUROC of noise, 5 clients, covers 0.5", _noise_in_clients, 0.94, 0.99, 1000
    ),
    _covers("AUROC of 0.6, 100 + 100, DeLong", _auroc_of(0.6), 0.94, 0.97, 1000),
    _covers("AUROC of 0.9, 100 + 100, DeLong", _auroc_of(0.9), 0.93, 0.97, 1000),
    _covers("AUROC of 0.6, 100 + 100, bootstrap", _bootstrap, 0.93, 0.98, 300),
    _covers("AUROC for new clients covers 0.5", _new_clients, 0.93, 0.97, 1000),
    _covers("TPR at FPR 10 %, 200 + 200", _rate_at(0.1, 200), 0.975, 1.0, 1000),
    _covers("TPR at FPR 1 %, 1000 + 1000", _rate_at(0.01, 1000), 0.975, 1.0, 1000),
    _covers("success rate of coin tosses covers 0.5", _success, 0.94, 0.99, 1000),
    _covers("success averaged over classes, too", _class_success, 0.94, 0.99, 1000),
    _covers("advantage of coin tosses covers 0", _advantage, 0.93, 0.98, 1000),
    _covers("paired difference of AUROCs", _paired_aurocs, 0.94, 0.97, 1000),
    _covers("paired difference of accuracies", _paired_accuracies, 0.93, 0.98, 1000),
)
