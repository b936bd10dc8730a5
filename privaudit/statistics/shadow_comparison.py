"""Comparison of a target with shadow models: the sums of LiRA and RMIA.

Signals are [models, records]; masks say which model was trained on which record. The
attacks ``lira`` and ``rmia`` have the sources, and the choices to be made. Other coins
of the shadows give other scores: see :mod:`privaudit.statistics.shadow_error`.
"""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import log_ndtr

Variance = Literal["auto", "per-record", "global", "global-published"]

USUAL_A = 0.3  # of offline RMIA, in its source, where nothing is tuned
MANY = 64  # models from which on one record's deviation is known well enough
MOST_SETS = 16  # of shadows that a jackknife leaves out in turn
FEWEST_SETS = 3
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
    shadows: Signals,
    chosen: Mask,
    variance: Variance,
    floor: float,
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
        deviation: PerRecord = np.nanstd(picked, axis=0)
        return deviation
    if variance == "global":
        picked = picked - np.nanmean(picked, axis=0)
        return float(np.sqrt(np.nanmean(picked**2)))
    return float(np.nanstd(picked))


def _log_density(
    value: PerRecord,
    mean: PerRecord,
    deviation: PerRecord,
) -> PerRecord:
    standard = (value - mean) / deviation
    return -0.5 * standard**2 - np.log(deviation) - 0.5 * np.log(2 * np.pi)


def dominated_shares(
    ratios: PerRecord,
    others: Float[np.ndarray, " population"],
    gamma: float,
) -> PerRecord:
    """Return the share of the population whose ratio a record's exceeds gamma times.

    By one sort, in O((n + z) log z): no n x z table.
    """
    ranked = np.sort(gamma * others)
    return np.searchsorted(ranked, ratios, side="left") / len(others)


def offline_mean(mean_out: PerRecord, a: float) -> PerRecord:
    """Return (1 + a)/2 mean_out + (1 - a)/2: a guess at p(x) from shadows out of x."""
    return ((1 + a) * mean_out + (1 - a)) / 2


def masked_mean(
    values: Signals,
    chosen: Mask,
) -> PerRecord:
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
    place = np.arange(shadows) // 2 % sets
    return [np.flatnonzero(place != out) for out in range(sets)]
