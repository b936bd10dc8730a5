"""From counts of wrong guesses over independent runs to epsilon."""

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from privaudit.statistics.intervals import clopper_pearson

TINY = 1e-300


def highest_error_rates(
    errors: Int[np.ndarray, "audits thresholds"],
    trials: Int[np.ndarray, " audits"],
    tail: float,
) -> Float[np.ndarray, "audits thresholds"]:
    """Return upper bounds on error rates, each exceeded with a chance of ``tail``.

    Without a trial the bound is 1.

    Source: Clopper and Pearson, Biometrika 26, 1934, one-sided.
    """
    highest = np.ones(errors.shape)
    for count in np.unique(trials[trials > 0]):
        rows = trials == count
        distinct, back = np.unique(errors[rows], return_inverse=True)
        _, high = clopper_pearson(distinct.astype(float), int(count), 1 - 2 * tail)
        highest[rows] = high[back].reshape(errors[rows].shape)
    return highest


def epsilon_from_rates(
    fpr: Float[np.ndarray, "*rates"], fnr: Float[np.ndarray, "*rates"], delta: float
) -> Float[np.ndarray, "*rates"]:
    """Return the epsilon that error rates no higher than these imply; may be negative.

    (epsilon, delta)-DP has TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR +
    delta. Both directions rest on the same two upper bounds, so that whenever those
    hold both do, and the larger one costs no further share of the error.

    Source: Kairouz, Oh and Viswanath, "The composition theorem for differential
    privacy", ICML 2015: differential privacy as bounds on error rates.
    """
    by_members = np.maximum(1 - fnr - delta, TINY) / fpr
    by_others = np.maximum(1 - fpr - delta, TINY) / fnr
    return np.log(np.maximum(by_members, by_others))


def epsilon_from_errors(
    misses: Int[np.ndarray, "audits thresholds"],
    alarms: Int[np.ndarray, "audits thresholds"],
    members: Int[np.ndarray, " audits"],
    nonmembers: Int[np.ndarray, " audits"],
    *,
    significance: float,
    delta: float,
) -> Float[np.ndarray, "audits thresholds"]:
    """Return each threshold's lower bound on epsilon; may be negative.

    Half of the significance goes to either error rate.

    Args:
        misses: Members below the threshold.
        alarms: Non-members not below it.
        members: Independent runs with the canary.
        nonmembers: Independent runs without.
        significance: Of each threshold's bound.
        delta: At which epsilon is meant.
    """
    fpr = highest_error_rates(alarms, nonmembers, significance / 2)
    fnr = highest_error_rates(misses, members, significance / 2)
    return epsilon_from_rates(fpr, fnr, delta)


def errors_at(
    thresholds: Float[np.ndarray, "audits thresholds"],
    scores: Shaped[np.ndarray, "audits runs"],
    is_member: Bool[np.ndarray, "audits runs"],
    counted: Bool[np.ndarray, "audits runs"],
) -> tuple[Int[np.ndarray, "audits thresholds"], Int[np.ndarray, "audits thresholds"]]:
    """Return misses and alarms; a score at the threshold is called a member."""
    columns = [
        (
            (~called & is_member & counted).sum(1),
            (called & ~is_member & counted).sum(1),
        )
        for called in (scores >= thresholds[:, [j]] for j in range(thresholds.shape[1]))
    ]
    misses, alarms = zip(*columns, strict=True)
    return np.stack(misses, axis=1), np.stack(alarms, axis=1)


def ceiling_from_errors(
    members: int, nonmembers: int, significance: float, delta: float
) -> float:
    """Return the bound without a single error, at least 0."""
    none = np.zeros((1, 1), np.int64)
    epsilon = epsilon_from_errors(
        none,
        none,
        np.array([members]),
        np.array([nonmembers]),
        significance=significance,
        delta=delta,
    )
    return max(float(epsilon[0, 0]), 0.0)
