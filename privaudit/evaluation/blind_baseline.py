"""The blind attacker: tells members from non-members without any model of theirs.

It sees records only, as features of a model that nobody tuned and as words. Where it
tells members from non-members, the two differ in distribution, and whatever else tells
them apart is no evidence of membership unless it does better.

Source: Das, Zhang and Tramèr, "Blind baselines beat membership inference attacks for
foundation models", 2024.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.special import expit, logit, ndtr
from scipy.stats import rankdata

from privaudit.core.errors import ConfigError, TooFewRecordsError
from privaudit.core.seeds import Seeds
from privaudit.statistics.comparisons import (
    Comparison,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.delong import delong_components
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import normal_quantile
from privaudit.statistics.roc import pooled_auroc

FOLDS = 5
STRENGTH = 1.0  # of the ridge, as scikit-learn has it, on features of unit variance
MOST_WORDS = 4000
METHOD = "cross-fitted logistic regression, ranks within folds, variance doubled"

Groups = tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]
Paired = tuple[
    Shaped[np.ndarray, " _"], Shaped[np.ndarray, " _"], Bool[np.ndarray, " _"]
]


def blind_baseline(
    member_features: Shaped[np.ndarray, "members features"],
    nonmember_features: Shaped[np.ndarray, "others columns"],
    seed: int = 0,
) -> Estimate:
    """Return the AUROC of an attacker that never sees the model under audit.

    Logistic regression on standardised features, cross-fitted: each fifth of the
    records is scored by a fit to the others. Scores of different fits are not
    comparable, so each is replaced by its rank in its own fold.

    The variance is twice DeLong's. Each fold's records trained the fits of the other
    folds: near 0.5 that makes the folds' AUROCs as correlated as doubles the variance
    of their mean (with the plain one, 12 to 17 % of intervals miss 0.5 where nothing
    is to be told). Far from 0.5 the interval is wider than it need be.

    Args:
        member_features: What anybody can compute of each record: features of a public
            model, counts of words (:func:`bag_of_words`). Nothing of the tuned model.
        nonmember_features: The same of the non-members.
        seed: Deals records to folds.

    Raises:
        ConfigError: Fewer than two records of either kind, columns differ, or a
            feature is not finite.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> here, there = rng.normal(size=(80, 3)), rng.normal(size=(80, 3))
        >>> blind_baseline(here, there).excludes(0.5)
        False
        >>> blind_baseline(here, there + 2).low > 0.9
        True
    """
    features, is_member = _stacked(member_features, nonmember_features)
    scores = blind_scores(features, is_member, seed)
    return pooled_blind_auroc([(scores[is_member], scores[~is_member])])


def _stacked(
    members: Shaped[np.ndarray, "members features"],
    others: Shaped[np.ndarray, "others columns"],
) -> tuple[Float[np.ndarray, "n features"], Bool[np.ndarray, " n"]]:
    if members.shape[1] != others.shape[1]:
        raise ConfigError(
            f"Members have {members.shape[1]} features and non-members "
            f"{others.shape[1]}. Compute the same ones of both."
        )
    features = np.concatenate([members, others]).astype(np.float64)
    return features, np.repeat([True, False], [len(members), len(others)])


def blind_scores(
    features: Float[np.ndarray, "n features"],
    is_member: Bool[np.ndarray, " n"],
    seed: int = 0,
) -> Float[np.ndarray, " n"]:
    """Return each record's rank in its fold, in (0, 1): higher looks like a member.

    Folds hold members and non-members in equal shares, so that ranks of different
    folds mean the same.

    Raises:
        ConfigError: Fewer than two records of either kind, or a feature is not finite.
    """
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features)).any(axis=1).sum())
        raise ConfigError(
            f"Features must be finite, and those of {bad} of {len(features)} records "
            "are not. Leave these records out, or fix what computes them."
        )
    folds = _deal_folds(is_member, Seeds(seed).stream("blind attacker").numpy())
    scores = np.empty(len(features))
    for fold in range(int(folds.max()) + 1):
        in_fold = folds == fold
        looks = _fit(features[~in_fold], is_member[~in_fold], features[in_fold])
        scores[in_fold] = (rankdata(looks) - 0.5) / len(looks)
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
        places = rng.permutation(np.flatnonzero(kind))
        # A start by chance: else the first folds would hold the odd records of both.
        folds[places] = (np.arange(len(places)) + rng.integers(count)) % count
    return folds


def _fit(
    known: Float[np.ndarray, "known features"],
    is_member: Bool[np.ndarray, " known"],
    asked: Float[np.ndarray, "asked features"],
) -> Float[np.ndarray, " asked"]:
    """Return the log-odds of membership that a fit to some records gives to others."""
    from sklearn.linear_model import LogisticRegression

    mean, spread = known.mean(axis=0), known.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    fit = LogisticRegression(C=STRENGTH, max_iter=10_000)
    fit.fit((known - mean) / scale, is_member)
    return fit.decision_function((asked - mean) / scale)


def bag_of_words(texts: Sequence[str]) -> Float[np.ndarray, "texts words"]:
    """Return how often each word, and each pair of neighbours, stands in each text.

    What stands in one text only is left out: nothing can be learned from it. Of more
    than 4,000 words and pairs those in most texts are kept. Pairs matter: ``scenes``
    and ``scenes-far`` differ in which colour goes with which shape, hardly in words.

    Example:
        >>> bag_of_words(["A red dog", "a dog", "the cat"])
        array([[1., 1.],
               [1., 1.],
               [0., 0.]])
    """
    counted = [Counter(_words_and_pairs(text)) for text in texts]
    within = Counter(word for counts in counted for word in counts)
    several = [entry for entry in within.most_common(MOST_WORDS) if entry[1] > 1]
    columns = {word: n for n, word in enumerate(sorted(word for word, _ in several))}
    bag = np.zeros((len(texts), len(columns)))
    for row, counts in enumerate(counted):
        for word in counts.keys() & columns.keys():
            bag[row, columns[word]] = counts[word]
    return bag


def _words_and_pairs(text: str) -> list[str]:
    from privaudit.models.clip.word_tokenizer import pieces

    words = pieces(text.lower())
    return [*words, *(f"{first} {second}" for first, second in pairwise(words))]


def pooled_blind_auroc(groups: Sequence[Groups]) -> Estimate:
    """Return the mean of per-client AUROCs of blind scores, by number of pairs.

    Args:
        groups: Per client :func:`blind_scores` of members and of non-members.
    """
    plain = pooled_auroc(groups)
    estimate = replace(plain, method=f"{plain.method}; {METHOD}")
    if plain.value in (0.0, 1.0):  # the bound there is exact, and no variance
        return estimate
    middle = logit(plain.value)
    ends = [
        middle + math.sqrt(2) * (logit(e) - middle) for e in (plain.low, plain.high)
    ]
    low, high = (float(end) for end in expit(ends))
    return replace(estimate, low=low, high=high)


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
