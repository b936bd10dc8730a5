"""Comparison with shadow models, as LiRA and RMIA do it, and the error of their coins.

Signals are [models, records]; masks say which model was trained on which record. The
attacks ``lira`` and ``rmia`` have the sources, and the choices to be made. Other coins
of the shadows give other scores: a jackknife over sets of them says how much of an
AUROC's error that is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, fdtri, log_ndtr, logit, ndtr, stdtrit

from privaudit.statistics.comparisons import Comparison
from privaudit.statistics.estimate import Estimate, normal_quantile
from privaudit.statistics.roc import delong_components

Variance = Literal["auto", "per-record", "global", "global-published"]

USUAL_A = 0.3  # of offline RMIA, in its source, where nothing is tuned
MANY = 64  # models from which on one record's deviation is known well enough
MOST_SETS = 16  # of shadows that a jackknife leaves out in turn
FEWEST_SETS = 3
_TOGETHER = 0.05  # level of the test whether sets move clients together
FLAT = 1e-4  # least deviation over models, in nats: below it is rounding

PerRecord = Float[np.ndarray, " records"]
Signals = Float[np.ndarray, "models records"]
Mask = Bool[np.ndarray, "models records"]


def online_scores(
    target: PerRecord,
    shadows: Signals,
    is_in: Mask,
    is_out: Mask,
    variance: Variance = "per-record",
    floor: float = FLAT,
) -> PerRecord:
    """Return log N(target; shadows in) - log N(target; shadows out).

    0 for a record that no shadow was trained on, or all of them.
    """
    ratio = _log_density(target, *_normals(shadows, is_in, variance, floor))
    ratio = ratio - _log_density(target, *_normals(shadows, is_out, variance, floor))
    return np.where(is_in.any(axis=0) & is_out.any(axis=0), ratio, 0.0)


def offline_scores(
    target: PerRecord,
    shadows: Signals,
    is_out: Mask,
    variance: Variance = "per-record",
    floor: float = FLAT,
) -> PerRecord:
    """Return -log Pr[N(shadows out) > target]: one-sided, so 0 is far below them.

    log 2, as for their median, where all shadows were trained on a record.
    """
    mean, deviation = _normals(shadows, is_out, variance, floor)
    standard = np.where(is_out.any(axis=0), (mean - target) / deviation, 0.0)
    return -log_ndtr(standard)


def _normals(
    shadows: Signals, chosen: Mask, variance: Variance, floor: float
) -> tuple[PerRecord, PerRecord]:
    """Return each record's median and deviation over the chosen shadows."""
    picked = np.where(chosen, shadows, np.nan)
    known = chosen.any(axis=0)
    centre, spread = np.zeros((2, shadows.shape[1]))
    if known.any():
        picked = picked[:, known]
        centre[known] = np.nanmedian(picked, axis=0)
        spread[known] = _deviation(picked, variance)
    return centre, np.maximum(spread, floor)


def _deviation(picked: Signals, variance: Variance) -> PerRecord | float:
    if variance == "auto":
        variance = "per-record" if len(picked) >= MANY else "global"
    if variance == "per-record":
        return np.nanstd(picked, axis=0)
    if variance == "global":
        picked = picked - np.nanmean(picked, axis=0)
        return float(np.sqrt(np.nanmean(picked**2)))
    return float(np.nanstd(picked))


def _log_density(value: PerRecord, mean: PerRecord, deviation: PerRecord) -> PerRecord:
    standard = (value - mean) / deviation
    return -0.5 * standard**2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)


def dominated_shares(
    ratios: PerRecord, others: Float[np.ndarray, " population"], gamma: float
) -> PerRecord:
    """Return the share of the population whose ratio a record's exceeds gamma times.

    By one sort, in O((n + z) log z): no n x z table.
    """
    ranked = np.sort(gamma * others)
    return np.searchsorted(ranked, ratios, side="left") / len(others)


def offline_mean(mean_out: PerRecord, a: float) -> PerRecord:
    """Return (1 + a)/2 mean_out + (1 - a)/2: a guess at p(x) from shadows out of x."""
    return ((1 + a) * mean_out + (1 - a)) / 2


def masked_mean(values: Signals, chosen: Mask) -> PerRecord:
    """Return each record's mean over the chosen models; over all if none is."""
    counts = chosen.sum(axis=0)
    mean = (values * chosen).sum(axis=0) / np.maximum(counts, 1)
    return np.where(counts > 0, mean, values.mean(axis=0))


def rows_left(shadows: int) -> list[Int[np.ndarray, " models"]]:
    """Return the shadows that are left where a set of them is left out, set by set.

    Pairs stay together, as one of them has each record and the other has not. None
    where there are fewer than three pairs.

    Example:
        >>> [rows.tolist() for rows in rows_left(6)]
        [[2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 2, 3]]
    """
    sets = min(MOST_SETS, (shadows + 1) // 2)
    if sets < FEWEST_SETS:
        return []
    number = np.arange(shadows) // 2 % sets
    return [np.flatnonzero(number != out) for out in range(sets)]


_SHADOWS = ", and a jackknife over {sets} sets of shadow models"
# Without names for lengths: each client has its own.
Groups = Sequence[tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]]


@dataclass(frozen=True)
class ShadowError:
    """What the shadows add to the variance of an AUROC, or of a difference of two.

    Attributes:
        variance: At least 0.
        freedom: Degrees of freedom at which it is known.
        sets: How many sets of shadows were left out.
    """

    variance: float
    freedom: float
    sets: int

    def __add__(self, other: "ShadowError") -> "ShadowError":
        """Return that of the difference of two whose shadows have nothing in common."""
        return ShadowError(
            self.variance + other.variance,
            min(self.freedom, other.freedom),
            min(self.sets, other.sets),
        )

    def reach(self, confidence: float) -> float:
        """Return half the width of an interval; Student's t as a factor at 95 %."""
        unsure = float(stdtrit(self.freedom, 0.975)) / normal_quantile(0.95)
        return normal_quantile(confidence) * unsure * math.sqrt(self.variance)


def shadow_error(
    left_out: Sequence[Groups], less: Sequence[Groups] | None = None
) -> ShadowError:
    """Return what the shadows add to the error of a pooled AUROC, or of a difference.

    The jackknife over sets of shadows, less what the records' own variance has already:
    noise in a score that is this record's alone is drawn anew with the record. Records
    and shadows are two crossed factors, as cases and readers of X-rays are, and the
    variance of a mean over both is that of either less that of their interaction.

    Each client has shadows of its own, so that their parts add up, and are known the
    better the more clients there are. Where an F test at 0.05 says that sets move
    all clients together, as shadows of whole federations may, the sets' joint part counts.

    Source: the grouped jackknife: Shao and Tu, "The jackknife and bootstrap", 1995,
    section 2.2; crossed factors: Dorfman, Berbaum and Metz, "Receiver operating
    characteristic rating analysis", Investigative Radiology 27, 1992, and Owen, "The
    pigeonhole bootstrap", Annals of Applied Statistics 1, 2007; degrees of freedom of a
    sum: Satterthwaite, Biometrics Bulletin 2, 1946.

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
    spread, freedom = _spread(values, weights)
    twice = np.repeat(weights, 2)  # members and others of each client
    shared = sum(
        weight**2 * _interaction(table)
        for weight, table in zip(twice, tables, strict=True)
    )
    return ShadowError(max(spread - shared, 0.0), freedom, len(values))


def _spread(
    values: Float[np.ndarray, "sets clients"], weights: Float[np.ndarray, " clients"]
) -> tuple[float, float]:
    """Return the jackknife's variance of the weighted mean, and its degrees of freedom."""
    free = float(len(values) - 1)
    each = weights**2 * free * values.var(axis=0)
    joint, apart = free * float((values @ weights).var()), float(each.sum())
    if not apart:
        return joint, free
    freedom = apart**2 / float((each**2 / free).sum())
    if joint > apart * float(fdtri(free, freedom, 1 - _TOGETHER)):
        return joint, free
    return apart, freedom


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


def with_shadow_error(estimate: Estimate, error: ShadowError) -> Estimate:
    """Return an AUROC, with the shadows' error in its interval.

    On the logit scale both errors add up like the legs of a right angle; at 0 and 1 on
    the plain one.
    """
    if estimate.unresolved:
        return estimate
    reach = error.reach(estimate.confidence)
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
        method=estimate.method + _SHADOWS.format(sets=error.sets),
    )


def difference_with_shadow_error(
    comparison: Comparison, shadows: ShadowError
) -> Comparison:
    """Return a difference of AUROCs, with its :func:`shadow_error`, too."""
    estimate = comparison.estimate
    reach = shadows.reach(estimate.confidence)
    value = estimate.value
    low = value - math.hypot(value - estimate.low, reach)
    high = value + math.hypot(estimate.high - value, reach)
    widened = replace(
        estimate,
        low=max(low, -1.0),
        high=min(high, 1.0),
        method=estimate.method + _SHADOWS.format(sets=shadows.sets),
    )
    error = (high - low) / 2 / normal_quantile(estimate.confidence)
    p_value = 2 * float(ndtr(-abs(value) / error)) if error > 0 else comparison.p_value
    return Comparison(widened, max(p_value, comparison.p_value))
