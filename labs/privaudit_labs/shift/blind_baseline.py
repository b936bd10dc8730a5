"""The blind attacker: tells members from non-members without any model of theirs.

It sees records only, as features of a model that nobody tuned and as words. Where it
tells members from non-members, the two differ in distribution, and whatever else tells
them apart is no evidence of membership unless it does better.

Source: Das, Zhang and Tramèr, "Blind baselines beat membership inference attacks for
foundation models", 2024.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import expit, logit, ndtr
from scipy.stats import rankdata

from privaudit.core.errors import TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.statistics.comparisons import (
    Comparison,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, normal_quantile
from privaudit.statistics.roc import delong_components, pooled_auroc
from privaudit_labs.shift.blind_family import BlindFamily, joined

FOLDS = 5
METHOD = "best of a family by nested cross-fitting, ranks in folds, variance doubled"

Groups = tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]
Paired = tuple[
    Shaped[np.ndarray, " _"], Shaped[np.ndarray, " _"], Bool[np.ndarray, " _"]
]


def blind_baseline(
    member_features: Shaped[np.ndarray, "members features"],
    nonmember_features: Shaped[np.ndarray, "others columns"],
    seed: int = 0,
    *,
    member_texts: Sequence[str] = (),
    nonmember_texts: Sequence[str] = (),
) -> Estimate:
    """Return the AUROC of an attacker that never sees the model under audit.

    The best of a fixed family of classifiers (:mod:`privaudit_labs.shift.blind_family`),
    cross-fitted: each fifth of the records is scored by a fit to the others, within
    which the best is chosen. Scores of different fits are not comparable, so each is
    replaced by its rank in its own fold.

    The variance is twice DeLong's (:func:`variance_doubled`).

    Args:
        member_features: What anybody can compute of each record: features of a public
            model, for example. Nothing of the tuned model.
        nonmember_features: The same of the non-members.
        seed: Assigns records to folds.
        member_texts: What is said of each member, such as its caption.
        nonmember_texts: The same of the non-members.

    Raises:
        ConfigError: Fewer than two records of either kind, columns differ, a feature is
            not finite, or texts are not one for each record.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> here, there = rng.normal(size=(80, 3)), rng.normal(size=(80, 3))
        >>> blind_baseline(here, there).excludes(0.5)
        False
        >>> blind_baseline(here, there + 2).low > 0.9
        True
    """
    features, is_member = joined(member_features, nonmember_features)
    scores = blind_scores(features, is_member, seed, [*member_texts, *nonmember_texts])
    return pooled_blind_auroc([(scores[is_member], scores[~is_member])])


def blind_scores(
    features: Float[np.ndarray, "n features"],
    is_member: Bool[np.ndarray, " n"],
    seed: int = 0,
    texts: Sequence[str] = (),
) -> Float[np.ndarray, " n"]:
    """Return each record's rank in its fold, in (0, 1): higher looks like a member.

    Folds hold members and non-members in equal shares, so that ranks of different
    folds mean the same.

    Raises:
        ConfigError: Fewer than two records of either kind, a feature is not finite, or
            texts are not one for each record.
    """
    family = BlindFamily(features, texts)
    folds = _deal_folds(is_member, Seeds(seed).stream("blind attacker").numpy())
    scores = np.empty(len(features))
    for fold in range(int(folds.max()) + 1):
        known, asked = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        looks = family.score(known, is_member[known], asked)
        scores[asked] = (rankdata(looks) - 0.5) / len(looks)
    return scores


def _deal_folds(
    is_member: Bool[np.ndarray, " n"], rng: np.random.Generator
) -> Int[np.ndarray, " n"]:
    members = int(is_member.sum())
    fewer = min(members, len(is_member) - members)
    if fewer < 2:
        raise TooFewRecordsError(
            f"The blind baseline trains on some records and scores others, but "
            f"there are {members} members and {len(is_member) - members} non-members. "
            "Give at least two of each."
        )
    count, folds = min(FOLDS, fewer), np.empty(len(is_member), dtype=np.int64)
    for kind in (is_member, ~is_member):
        records = rng.permutation(np.flatnonzero(kind))
        # A start by chance: else the first folds would hold the odd records of both.
        folds[records] = (np.arange(len(records)) + rng.integers(count)) % count
    return folds


def variance_doubled(auroc: Estimate) -> Estimate:
    """Return an AUROC of cross-fitted scores with twice the variance in its interval.

    Each fold's records trained the fits of the other folds: near 0.5 that makes the
    folds' AUROCs as correlated as doubles the variance of their mean (with the plain
    one, 12 to 17 % of intervals miss 0.5 where there is no difference). Far from 0.5
    the interval is wider than it need be. At 0 and 1 the bound is exact, and stays.

    Args:
        auroc: With an interval on the logit scale, as
            :func:`privaudit.statistics.roc.auroc` returns it.

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


def pooled_blind_auroc(groups: Sequence[Groups]) -> Estimate:
    """Return the mean by pairs of AUROCs of clients' :func:`blind_scores`."""
    plain = pooled_auroc(groups)
    return variance_doubled(replace(plain, method=f"{plain.method}; {METHOD}"))


def beyond_blind(groups: Sequence[Paired]) -> Comparison:
    """Return an attack's AUROC less the blind attacker's, on the same records.

    The blind attacker's variance counts twice, as in :func:`blind_baseline`.
    """
    plain = pooled_paired_auroc_difference(groups)
    difference = plain.estimate
    half = _widening(groups) * max(
        difference.high - difference.value, difference.value - difference.low
    )
    estimate = replace(
        difference,
        low=max(difference.value - half, -1.0),
        high=min(difference.value + half, 1.0),
        method=f"{difference.method}; the second: {METHOD}",
    )
    error = half / normal_quantile(difference.confidence)
    return Comparison(estimate, 2 * float(ndtr(-abs(difference.value) / error)))


def _widening(groups: Sequence[Paired]) -> float:
    """Return by what an interval grows that is to hold the second's variance twice."""
    once = twice = 0.0
    for scores, blind, truth in groups:
        if truth.any() and not truth.all():
            attack_auroc = delong_components(scores[truth], scores[~truth])
            blind_auroc = delong_components(blind[truth], blind[~truth])
            once += attack_auroc.pairs**2 * (attack_auroc - blind_auroc).delong_variance
            twice += blind_auroc.pairs**2 * blind_auroc.delong_variance
    return math.sqrt(1 + twice / once) if once else math.sqrt(2)
