"""Inferred shares of clients beside the true ones, with their intervals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtrit

from privaudit.statistics.estimate import Estimate, mean_with_t, paired_difference

_PREDICTED = "share, prediction interval from {shadows} shadow models"
_CALIBRATED = "share, calibrated by {shadows} shadow models"
STEPS = 1000  # of shares that may explain an estimate
NO_GAP = 1e-9  # between true- and false-positive rate: nothing can be estimated


@dataclass(frozen=True)
class InferredShare:
    """One share of one client.

    Attributes:
        estimated: By the adversary.
        actual: The truth.
    """

    estimated: Estimate
    actual: float

    @property
    def error(self) -> float:
        """By how much the estimate misses the truth."""
        return abs(self.estimated.value - self.actual)


@dataclass(frozen=True)
class InferredShares:
    """Shares of several clients, and whether they were inferred at all.

    Attributes:
        by_client: Of each client, by what they are shares of.
        error: Mean absolute error, a client's mean being one replicate.
        error_of_prior: That of somebody who knows no client's model.
        gain: The latter less the former; above 0 something was learned.
    """

    by_client: Mapping[str, Mapping[str, InferredShare]]
    error: Estimate
    error_of_prior: Estimate
    gain: Estimate

    @classmethod
    def of(
        cls,
        by_client: Mapping[str, Mapping[str, InferredShare]],
        prior: Mapping[str, float],
    ) -> "InferredShares":
        """Compare with a prior of each share.

        Raises:
            ConfigError: There is no client.
        """
        errors, of_prior = (
            np.array([np.mean(row) for row in rows])
            for rows in (
                [[s.error for s in shares.values()] for shares in by_client.values()],
                [
                    [abs(prior[name] - share.actual) for name, share in shares.items()]
                    for shares in by_client.values()
                ],
            )
        )
        return cls(
            by_client,
            mean_with_t(errors),
            mean_with_t(of_prior),
            paired_difference(of_prior, errors),
        )


def calibrated_share(
    value: float,
    estimates: Float[np.ndarray, " shadows"],
    shares: Float[np.ndarray, " shadows"],
) -> Estimate:
    """Return a share with all those that explain its estimate, by linear calibration.

    Estimates by a penalised regression are drawn to the mean, so that their errors on
    shadows say little of a client unlike those, such as one of a single class. So the
    estimate is regressed on the share, and the interval is of all shares whose
    prediction interval of 95 % holds the estimate; it is [0, 1] where estimates do not
    go with shares. An estimate beyond those of shares 0 and 1 counts as the nearer.

    Source: Eisenhart, "The interpretation of certain regression methods and their use
    in biological and industrial research", Annals of Mathematical Statistics 10, 1939.

    Args:
        value: The estimate, anywhere; cut to [0, 1].
        estimates: The same of at least three models that the estimator did not see.
        shares: Of these, the truth.

    Example:
        >>> estimates = np.array([0.1, 0.0, 0.6, 0.5, 1.1, 1.0])
        >>> print(calibrated_share(0.5, estimates, np.array([0.0, 0, 0.5, 0.5, 1, 1])))
        0.500 [0.261, 0.636], n = 6
    """
    count, cut = len(shares), min(max(value, 0.0), 1.0)
    spread = shares - shares.mean()
    squares = float(spread @ spread)
    method = _CALIBRATED.format(shadows=count)
    if not squares:  # no shadow has more of it than another
        return Estimate(cut, 0.0, 1.0, (count,), method)
    slope = float(spread @ estimates) / squares
    residuals = estimates - estimates.mean() - slope * spread
    error = math.sqrt(float(residuals @ residuals) / (count - 2))
    possible = np.linspace(0, 1, STEPS + 1)
    away = possible - shares.mean()
    expected = estimates.mean() + slope * away
    nearest = np.clip(value, expected.min(), expected.max())
    widths = np.sqrt(1 + 1 / count + away**2 / squares)
    reach = float(stdtrit(count - 2, 0.975)) * error * widths
    rounding = abs(slope) / STEPS
    held = possible[np.abs(nearest - expected) <= reach + rounding]
    low, high = min(float(held[0]), cut), max(float(held[-1]), cut)
    return Estimate(cut, low, high, (count,), method)


def estimated_usage(
    target: Float[np.ndarray, " records"],
    shadows: Float[np.ndarray, "models records"],
    is_in: Bool[np.ndarray, "models records"],
) -> Estimate:
    """Return which share of some records a model was trained on.

    Each record is guessed to be a member where its signal lies on the side of the
    shadows that were trained on it, and the share of guesses is freed of its bias by
    the shadows' true- and false-positive rates: (guessed - FPR) / (TPR - FPR). Each
    shadow is guessed by the others. The interval is of all shares that explain the
    guesses as well as shadows' own shares explain theirs, with the ends of the interval
    of TPR - FPR; where that holds 0, nothing can be estimated.

    Source: Tong, Ye, Zarifzadeh and Shokri, "How much of my dataset did you use?
    Quantitative data usage inference in machine learning" (DUCI), ICLR 2025, the
    debiased mean of membership guesses. There the interval is by the central limit
    theorem over records, which takes no account of what one training moves together.

    Args:
        target: The model's signal of each record, such as its confidence.
        shadows: The same of each shadow.
        is_in: Which shadow was trained on which record; each record is in at least
            one and out of at least one.
    """
    inside, outside = _sums(shadows, is_in), _sums(shadows, ~is_in)
    own_in, own_out = is_in * shadows, ~is_in * shadows
    guesses = _is_nearer(
        shadows,
        (inside[0] - own_in) / np.maximum(inside[1] - is_in, 1),
        (outside[0] - own_out) / np.maximum(outside[1] - ~is_in, 1),
    )
    guessed = _is_nearer(target, inside[0] / inside[1], outside[0] / outside[1])
    rows = guesses & is_in, is_in, guesses & ~is_in, ~is_in
    counts = np.stack(rows).sum(axis=2).astype(float)
    total = counts.sum(axis=1, keepdims=True)
    false, gap = _rates(total - counts)
    residuals = guesses.mean(axis=1) - false - gap * is_in.mean(axis=1)
    (false,), (gap,) = _rates(total)
    gaps = (
        gap + _reach(_rates(counts)[1] - gap) * np.array([-1, 1]) / len(shadows) ** 0.5
    )
    return _share_behind(float(guessed.mean() - false), float(gap), gaps, residuals)


def _share_behind(
    excess: float,
    gap: float,
    gaps: Float[np.ndarray, " ends"],
    residuals: Float[np.ndarray, " shadows"],
) -> Estimate:
    """Return the shares by which an excess of guesses over false ones is explained.

    Args:
        excess: Share of guesses, less the false-positive rate.
        gap: True- less false-positive rate: the excess of a share of 1.
        gaps: The ends of its interval.
        residuals: Of the excess, of models whose share is known.
    """
    count, method = len(residuals), _PREDICTED.format(shadows=len(residuals))
    if gaps[0] < NO_GAP:
        value = min(max(excess / gap, 0.0), 1.0) if gap > NO_GAP else 0.5
        return Estimate(value, 0.0, 1.0, (count,), method)
    reach = _reach(residuals) * (1 + 1 / count) ** 0.5
    ends = np.outer(excess + np.array([-reach, 0, reach]), 1 / gaps)
    low, high = np.clip([ends[0].min(), ends[2].max()], 0, 1).tolist()
    return Estimate(float(np.clip(excess / gap, 0, 1)), low, high, (count,), method)


def _reach(residuals: Float[np.ndarray, " shadows"]) -> float:
    """Return how far 95 % of normal residuals about 0 reach, by Student."""
    spread = math.sqrt(float(np.mean(np.square(residuals))))
    return float(stdtrit(len(residuals), 0.975)) * spread


def _sums(
    shadows: Float[np.ndarray, "models records"],
    chosen: Bool[np.ndarray, "models records"],
) -> tuple[Float[np.ndarray, " records"], Float[np.ndarray, " records"]]:
    return (chosen * shadows).sum(axis=0), chosen.sum(axis=0).astype(float)


def _is_nearer(
    values: Float[np.ndarray, "*models records"],
    inside: Float[np.ndarray, "*rows records"],
    outside: Float[np.ndarray, "*rows records"],
) -> Bool[np.ndarray, "*models records"]:
    return np.abs(values - inside) < np.abs(values - outside)


def _rates(
    counts: Float[np.ndarray, "4 models"],
) -> tuple[Float[np.ndarray, " models"], Float[np.ndarray, " models"]]:
    """Return false-positive rates, and by how much the true-positive ones are larger."""
    hits, members, alarms, others = counts
    false = alarms / np.maximum(others, 1)
    return false, hits / np.maximum(members, 1) - false
