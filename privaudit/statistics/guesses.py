"""Attack accuracy: how often yes-or-no guesses at membership are right.

The threshold behind the guesses must have been fixed elsewhere, on shadow models or on
a split of its own: the best threshold on the target's truth is right too often.
Conventions are those of :mod:`privaudit.statistics.roc`.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Int, Shaped

from privaudit.core.errors import ConfigError
from privaudit.statistics.estimate import Estimate, proportion, two_proportions
from privaudit.statistics.intervals import clopper_pearson, effective_count

Truth = Bool[np.ndarray, " candidates"]
Guesses = Bool[np.ndarray, " guesses"]  # the adversary's, in the order of the truth
ClusterNumbers = Int[np.ndarray, " clusters"]

_RIGHT = "share of right guesses, Clopper-Pearson"
_RIGHT_BY_CLASS = (
    "share of right guesses averaged over {classes} classes, Korn-Graubard"
)


def success_rate(
    is_member: Truth,
    guesses: Guesses,
    confidence: float = 0.95,
    clusters: ClusterNumbers | None = None,
) -> Estimate:
    """Return the share of right guesses, 0.5 by chance on a fair membership coin.

    The interval covers at least ``confidence``. With clusters it is Clopper-Pearson's at
    their effective number.

    Example:
        >>> truth = np.array([True, True, False, False])
        >>> print(success_rate(truth, np.array([True, True, True, False])))
        0.750 [0.194, 0.994], n = 4
    """
    _check_lengths(is_member, guesses)
    correct = is_member == guesses
    estimate = proportion(int(correct.sum()), len(is_member), confidence)
    if clusters is None:
        return replace(estimate, method=_RIGHT)
    size = effective_count(correct, clusters)
    low, high = clopper_pearson(np.array([estimate.value * size]), size, confidence)
    method = f"{_RIGHT} at the effective number"
    return replace(estimate, low=float(low[0]), high=float(high[0]), method=method)


def class_averaged_success(
    is_member: Truth,
    guesses: Guesses,
    labels: Shaped[np.ndarray, " labels"],
    clusters: ClusterNumbers | None = None,
) -> Estimate:
    """Return the share of right guesses within each class, averaged over the classes.

    Every class that occurs counts the same. The interval is Clopper-Pearson's at the
    effective number of candidates, that which gives one proportion the stratified
    variance; with one class it is the plain interval. It covers 95 % or more at 1 to 50
    candidates per class, where a normal one falls to 25-94 %.

    Source: the average: DP-FPL, appendix A.3; the interval: Korn and Graubard,
    "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data", Survey Methodology 24, 1998. Here each class's rate is
    shrunk by the rule of succession, and their adjustment for degrees of freedom left
    out.
    """
    _check_lengths(is_member, guesses, labels)
    _, of_class, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    right = np.bincount(of_class, weights=is_member == guesses)
    value, classes = float((right / sizes).mean()), len(sizes)
    shrunk = (right + 1) / (sizes + 2)
    variance = (shrunk * (1 - shrunk) / sizes).sum() / classes**2
    spread = shrunk.mean() * (1 - shrunk.mean())
    effective = float(min(spread / variance, classes**2 / (1 / sizes).sum()))
    if clusters is not None:
        influence = ((is_member == guesses) - (right / sizes)[of_class]) / sizes[
            of_class
        ]
        effective *= effective_count(influence, clusters) / len(labels)
    low, high = clopper_pearson(np.array([value * effective]), effective, 0.95)
    method = _RIGHT_BY_CLASS.format(classes=classes)
    return Estimate(value, float(low[0]), float(high[0]), (len(labels),), method)


def advantage(
    is_member: Truth, guesses: Guesses, clusters: ClusterNumbers | None = None
) -> Estimate:
    """Return the true-positive rate less the false-positive rate, 0 by chance.

    Where nothing leaks, chance puts the whole interval above 0 in 2 % of draws on
    average, and at worst in 3 % at 5 + 5 to 100 + 100 candidates, 5 % at 10 + 100 and
    7 % at 5 + 100 (exact, over true-positive rates of 1 to 99 %). It is shown beside
    the AUROC, which decides.
    """
    _check_lengths(is_member, guesses)
    hits, alarms = guesses[is_member], guesses[~is_member]
    estimate = two_proportions(
        int(hits.sum()), len(hits), int(alarms.sum()), len(alarms)
    )
    if clusters is not None:
        estimate = _widened(estimate, is_member, guesses, clusters)
    return replace(estimate, method="TPR - FPR, Newcombe's hybrid score")


def _widened(
    found: Estimate,
    is_member: Truth,
    guesses: Guesses,
    clusters: ClusterNumbers,
) -> Estimate:
    """Return a difference of rates with an interval as wide as clusters make it."""
    influence = np.zeros(len(guesses))
    for kind, sign in ((is_member, 1.0), (~is_member, -1.0)):
        influence[kind] = sign * (guesses[kind] - guesses[kind].mean()) / kind.sum()
    wider = (len(guesses) / effective_count(influence, clusters)) ** 0.5
    low = found.value - wider * (found.value - found.low)
    high = found.value + wider * (found.high - found.value)
    return replace(found, low=max(low, -1.0), high=min(high, 1.0))


def _check_lengths(
    is_member: Truth,
    *others: Shaped[np.ndarray, " _"],
) -> None:
    lengths = [len(is_member), *(len(other) for other in others)]
    if not all(lengths) or len(set(lengths)) > 1:
        raise ConfigError(
            "A success rate needs one guess (and one label) for each of at least one "
            f"candidate, and their numbers are {lengths}. Align them."
        )
