"""Error of an AUROC by the coins of shadow models: a jackknife over them."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from scipy.special import expit, logit, ndtr, stdtrit

from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.delong import delong_components
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import normal_quantile

_SHADOWS = ", and a jackknife over {sets} sets of shadow models"
# Without names for lengths: each client has its own.
Groups = Sequence[tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]]


def shadow_variance(
    left_out: Sequence[Groups], less: Sequence[Groups] | None = None
) -> float:
    """Return what the shadows add to the variance of a pooled AUROC, or of a difference.

    The jackknife over sets of shadows, less what the records' own variance has already:
    noise in a score that is this record's alone is drawn anew with the record. Records
    and shadows are two crossed factors, as cases and readers of X-rays are, and the
    variance of a mean over both is that of either less that of their interaction.

    Source: the grouped jackknife: Shao and Tu, "The jackknife and bootstrap", 1995,
    section 2.2; crossed factors: Dorfman, Berbaum and Metz, "Receiver operating
    characteristic rating analysis", Investigative Radiology 27, 1992, and Owen, "The
    pigeonhole bootstrap", Annals of Applied Statistics 1, 2007.

    Args:
        left_out: For each set of shadows what scores are without it: for each client
            its members' and its non-members', at least one of each. At least two sets,
            the same for all clients.
        less: The same records' scores by another attack or on another model, where the
            AUROC less theirs is meant: set by set, so that what both share is no error.
    """
    values, tables, weights = _placed(left_out)
    if less is not None:
        others, their_tables, _ = _placed(less)
        values = values - others
        both = zip(tables, their_tables, strict=True)
        tables = [ours - theirs for ours, theirs in both]
    pooled, sets = values @ weights, len(values)
    spread = (sets - 1) * float(pooled.var())
    twice = np.repeat(weights, 2)  # members and others of each client
    shared = sum(
        weight**2 * _interaction(table)
        for weight, table in zip(twice, tables, strict=True)
    )
    return max(spread - shared, 0.0)


def _placed(
    left_out: Sequence[Groups],
) -> tuple[
    Float[np.ndarray, "sets clients"],
    list[Float[np.ndarray, "sets _"]],
    Float[np.ndarray, " clients"],
]:
    """Return AUROCs, each client's placements of members and of others, and weights."""
    placed = [
        [delong_components(*client) for client in clients] for clients in left_out
    ]
    pairs = np.array([client.pairs for client in placed[0]], np.float64)
    values = np.array([[client.value for client in clients] for clients in placed])
    tables = [
        np.stack([getattr(one, side) for one in client])
        for client in zip(*placed, strict=True)
        for side in ("members", "nonmembers")
    ]
    return values, tables, pairs / pairs.sum()


def _interaction(placements: Float[np.ndarray, "sets records"]) -> float:
    """Return the variance of a mean that is neither a record's nor a set's alone."""
    sets, records = placements.shape
    if records == 1:
        return 0.0
    rest = placements - placements.mean(axis=0) - placements.mean(axis=1)[:, None]
    rest += placements.mean()
    return float((rest**2).sum()) * (sets - 1) / (sets * records * (records - 1))


def with_shadow_error(estimate: Estimate, variance: float, sets: int) -> Estimate:
    """Return an AUROC, with :func:`shadow_variance` of so many sets in its interval.

    On the logit scale both errors add up like the legs of a right angle; at 0 and 1 on
    the plain one. So few sets know their variance badly: Student's t in place of the
    normal, as a factor at 95 %.
    """
    if estimate.unresolved:
        return estimate
    reach = _reach(estimate.confidence, variance, sets)
    value, ends = estimate.value, (estimate.low, estimate.high)
    if estimate.low > 0 and estimate.high < 1:
        centre, reach = float(logit(value)), reach / (value * (1 - value))
        low, high = (
            float(expit(centre + sign * math.hypot(float(logit(end)) - centre, reach)))
            for sign, end in zip((-1, 1), ends, strict=True)
        )
    else:
        low, high = (
            value + sign * math.hypot(end - value, reach)
            for sign, end in zip((-1, 1), ends, strict=True)
        )
    return replace(
        estimate,
        low=max(min(low, value), 0.0),
        high=min(max(high, value), 1.0),
        method=estimate.method + _SHADOWS.format(sets=sets),
    )


def difference_with_shadow_error(
    comparison: Comparison, variance: float, sets: int
) -> Comparison:
    """Return a difference of AUROCs, with its :func:`shadow_variance`, too."""
    estimate = comparison.estimate
    reach = _reach(estimate.confidence, variance, sets)
    value = estimate.value
    low = value - math.hypot(value - estimate.low, reach)
    high = value + math.hypot(estimate.high - value, reach)
    widened = replace(
        estimate,
        low=max(low, -1.0),
        high=min(high, 1.0),
        method=estimate.method + _SHADOWS.format(sets=sets),
    )
    error = (high - low) / 2 / normal_quantile(estimate.confidence)
    p_value = 2 * float(ndtr(-abs(value) / error)) if error > 0 else comparison.p_value
    return Comparison(widened, max(p_value, comparison.p_value))


def _reach(confidence: float, variance: float, sets: int) -> float:
    unsure = float(stdtrit(sets - 1, 0.975)) / normal_quantile(0.95)
    return normal_quantile(confidence) * unsure * math.sqrt(variance)
