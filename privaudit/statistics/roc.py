"""From scores to AUROC; the one place to import ROC figures from.

Higher scores mean more likely a member, and ties between a member and a non-member
count one half. Scores of different clients come from different models, so
:func:`pooled_auroc` averages what each client's scores achieve. Rates at one threshold
for all clients (:func:`tpr_at_fpr` on joined scores) are what an adversary gets who
does compare them: a lower figure than a threshold for each client would give.

Everywhere in this module, :mod:`privaudit.statistics.curve`,
:mod:`privaudit.statistics.delong` and :mod:`privaudit.statistics.guesses`:
``confidence`` is the nominal coverage of an interval, in (0, 1). ``clusters`` are numbers
that records share which resemble one another, each with a coin of its own; None if none
do. A class without scores, scores that are not finite, arrays of unlike lengths and
numbers out of range are a ConfigError.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped
from scipy.special import expit, logit, stdtrit

from privaudit.core.errors import TooFewRecordsError
from privaudit.statistics.curve import RocCurve as RocCurve
from privaudit.statistics.curve import roc_curve as roc_curve
from privaudit.statistics.curve import tied
from privaudit.statistics.curve import tpr_at_fpr as tpr_at_fpr
from privaudit.statistics.delong import (
    AnyScores,
    AurocVariance,
    Clusters,
    Placements,
    auroc_interval,
)
from privaudit.statistics.delong import delong_components as delong_components
from privaudit.statistics.estimate import STUDENT, Estimate, needs, unresolved
from privaudit.statistics.guesses import advantage as advantage
from privaudit.statistics.guesses import (
    class_averaged_success as class_averaged_success,
)
from privaudit.statistics.guesses import success_rate as success_rate
from privaudit.statistics.intervals import check_confidence

_LOGIT = "AUROC, DeLong or Wilcoxon on the logit scale"
_TIES = "{ties} of {n} scores tie"
_CLUSTERS = "by {n} clusters, Obuchowski"
_POOLED = "AUROC averaged over {n} clients by pairs"
LEFT_OUT = "{n} left out, without members or non-members"
_STRATIFIED = "stratified DeLong or Wilcoxon on the logit scale"


def auroc(
    member_scores: AnyScores,
    nonmember_scores: AnyScores,
    confidence: float = 0.95,
    clusters: Clusters | None = None,
) -> Estimate:
    """Return the chance that a member outscores a non-member, ties counting one half.

    The interval is on the logit scale, with DeLong's variance or, where that is
    larger, Wilcoxon's with the same ties; ``method`` says how many scores tie. At 0 and
    1 it is exact; see :func:`privaudit.statistics.delong.auroc_interval`.

    Example:
        >>> print(auroc(np.array([3.0, 2.0, 0.0]), np.array([1.0, 0.0])))
        0.750 [0.150, 0.979], n = 3 + 2
    """
    placements = delong_components(member_scores, nonmember_scores, clusters=clusters)
    low, high = auroc_interval(
        placements.value,
        AurocVariance.of(placements),
        placements.disjoint_pairs,
        confidence,
    )
    counts = len(member_scores), len(nonmember_scores)
    ties = tied(np.concatenate([member_scores, nonmember_scores]))
    method = _LOGIT + (f"; {_TIES.format(ties=ties, n=sum(counts))}" if ties else "")
    if clusters is not None:
        method += f"; {_CLUSTERS.format(n=placements.independent)}"
    return Estimate(placements.value, low, high, counts, method, confidence)


def sign_turned(auroc: Estimate) -> Estimate:
    """Return the AUROC of the same scores with their sign turned.

    Example:
        >>> print(sign_turned(Estimate(0.1, 0.05, 0.3, (40, 40), "AUROC")))
        0.900 [0.700, 0.950], n = 40 + 40
    """
    return replace(auroc, value=1 - auroc.value, low=1 - auroc.high, high=1 - auroc.low)


def variance_doubled(auroc: Estimate) -> Estimate:
    """Return an AUROC of cross-fitted scores with twice the variance in its interval.

    Each fold's records trained the fits of the other folds: near 0.5 that makes the
    folds' AUROCs as correlated as doubles the variance of their mean (with the plain
    one, 12 to 17 % of intervals miss 0.5 where there is no difference). Far from 0.5
    the interval is wider than it need be. At 0 and 1 the bound is exact, and stays.

    Args:
        auroc: With an interval on the logit scale, as :func:`auroc` returns it.

    Example:
        >>> print(variance_doubled(Estimate(0.5, 0.4, 0.6, (50, 50), "AUROC")))
        0.500 [0.360, 0.640], n = 50 + 50
    """
    if auroc.value in (0.0, 1.0):
        return auroc
    middle = logit(auroc.value)
    ends = [
        middle + math.sqrt(2) * (logit(end) - middle) for end in (auroc.low, auroc.high)
    ]
    low, high = (float(end) for end in expit(ends))
    return replace(auroc, low=low, high=high)


def pooled_auroc(
    groups: Sequence[tuple[Shaped[np.ndarray, " _"], Shaped[np.ndarray, " _"]]],
    population: Literal["these", "new"] = "these",
    confidence: float = 0.95,
    clusters: Sequence[Clusters | None] | None = None,
) -> Estimate:
    """Return the mean of per-client AUROCs, weighted by their number of pairs.

    Clients without a member or without a non-member are left out, and ``method`` says
    how many. The variance is as in :func:`auroc`, the larger sum over clients.

    Args:
        groups: Per client its members' and its non-members' scores.
        population: "these": the interval is for other records of the same clients, and
            ``n`` counts members and non-members. "new": it is for other clients, the
            client is the replicate, and ``n`` counts clients.
        confidence: As everywhere.
        clusters: Per client.

    Raises:
        TooFewRecordsError: No client has members and non-members.

    Example:
        >>> alice = np.array([2.0, 0.0]), np.array([1.0])
        >>> bob = np.array([2.0]), np.array([1.0, 3.0])
        >>> print(pooled_auroc([alice, bob]))
        0.500 [0.059, 0.941], n = 3 + 3
    """
    check_confidence(confidence)
    clients = [
        delong_components(members, others, clusters=alike)
        for (members, others), alike in zip(
            groups, clusters or [None] * len(groups), strict=True
        )
        if len(members) and len(others)
    ]
    if not clients:
        raise TooFewRecordsError(
            f"None of {len(groups)} clients has both members and non-members. "
            "Give the clients more candidates."
        )
    left_out = len(groups) - len(clients)
    note = f"; {LEFT_OUT.format(n=left_out)}" if left_out else ""
    method = f"{_POOLED.format(n=len(clients))}{note}; "
    pool = _pool_these if population == "these" else _pool_new
    return pool(clients, method, confidence)


def _pool_these(
    clients: Sequence[Placements], method: str, confidence: float
) -> Estimate:
    """Return the stratified interval.

    Where all clients are at 1, all their disjoint pairs fell the same way, which has a
    chance of Π θ^count <= (Σ weight θ)^min(count / weight) by the inequality of means.
    """
    weights, value = _weights(clients), _weighted_mean(clients)
    variance = AurocVariance.pooled(clients, weights)
    counts = np.array([client.disjoint_pairs for client in clients])
    low, high = auroc_interval(
        value, variance, float((counts / weights).min()), confidence
    )
    n = (
        sum(len(client.members) for client in clients),
        sum(len(client.nonmembers) for client in clients),
    )
    how = method + _STRATIFIED
    if any(client.clusters is not None for client in clients):
        count = sum(client.independent for client in clients)
        how += f"; {_CLUSTERS.format(n=count)}"
    return Estimate(value, low, high, n, how, confidence)


def _pool_new(
    clients: Sequence[Placements], method: str, confidence: float
) -> Estimate:
    """Return Student's interval over clients.

    Equal weights give the textbook's. For unequal ones its variance is the jackknife's
    and its degrees of freedom are Kish's effective number of clients less one: with the
    plain variance and K - 1, five clients of 4 to 60 candidates cover 88 % in place of
    95 %; so they cover 96 %.
    """
    weights, value = _weights(clients), _weighted_mean(clients)
    values, count = np.array([client.value for client in clients]), len(clients)
    if count == 1:
        return unresolved(needs(2, "clients", 1), (1,), method, confidence, value)
    shifts = weights / (1 - weights) * (values - value)
    error = np.sqrt((count - 1) / count * (shifts @ shifts))
    if error == 0:
        these = _pool_these(clients, f"{method}equal in all; ", confidence)
        return replace(these, n=(count,))
    freedom = float(1 / (weights @ weights) - 1)
    half = float(stdtrit(freedom, (1 + confidence) / 2) * error)
    how = f"{method}jackknife over clients" + STUDENT.format(freedom=f"{freedom:.3g}")
    low, high = max(value - half, 0.0), min(value + half, 1.0)
    return Estimate(value, low, high, (count,), how, confidence)


def _weights(clients: Sequence[Placements]) -> Float[np.ndarray, " clients"]:
    pairs = np.array([client.pairs for client in clients], np.float64)
    return pairs / pairs.sum()


def _weighted_mean(clients: Sequence[Placements]) -> float:
    # Divided last, so that 1 everywhere gives 1 to the last bit.
    total = sum(client.pairs for client in clients)
    return sum(client.pairs * client.value for client in clients) / total
