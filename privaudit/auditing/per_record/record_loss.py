"""What single records give away, by shadow models that trained on them or did not.

A record's signal under models that trained on it, and under those that did not, is
taken as normal with one deviation (LiRA's view). How far apart the two lie, in
deviations, is all that an attack on this signal can learn of the record's membership:
the best test between them errs as one between N(0, 1) and N(loss, 1). It is an estimate
of what this signal shows, and no bound on what another one might.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtr

from privaudit.statistics.intervals import normal_quantile
from privaudit.statistics.shadow_comparison import FLAT

FEWEST_MODELS = 3  # in, and as many out: with fewer a deviation is a guess
LEVEL = 0.95


@dataclass(frozen=True)
class RecordLosses:
    """How far the models that trained on a record are from those that did not.

    Attributes:
        value: In deviations of one model's signal; above 0 where training on the record
            raises it. NaN where too few models were in, or out.
        low: Lower end of each record's own interval of 95 %, not corrected.
        high: Upper end.
        p_value: One-sided, of a loss of 0 or less; 1 where there is no estimate.
    """

    value: Float[np.ndarray, " records"]
    low: Float[np.ndarray, " records"]
    high: Float[np.ndarray, " records"]
    p_value: Float[np.ndarray, " records"]

    def exposed(self, rate: float = 0.05) -> Bool[np.ndarray, " records"]:
        """Return the records that lose something, at an expected rate of false discoveries.

        Source: Benjamini and Hochberg, "Controlling the false discovery rate", Journal
        of the Royal Statistical Society B 57, 1995; records whose coins are tossed
        independently have uncorrelated losses, though the same models give them.
        """
        p_value = np.clip(self.p_value, 0, 1)
        ordered, count = np.sort(p_value), len(p_value)
        passed = np.flatnonzero(ordered * (count / np.arange(1, count + 1)) <= rate)
        largest = ordered[passed[-1]] if len(passed) else -1
        found: Bool[np.ndarray, " records"] = p_value <= largest
        return found


def record_losses(
    signals: Float[np.ndarray, "models records"],
    is_in: Bool[np.ndarray, "models records"],
    is_out: Bool[np.ndarray, "models records"],
) -> RecordLosses:
    """Return each record's loss with its interval.

    The difference of the means over the record's pooled deviation, which few models
    make too large by a known factor (Hedges). Its pivot is a noncentral t.

    Source: records ranked by LiRA's two normals: Carlini et al., "The privacy onion
    effect", NeurIPS 2022; one pooled deviation is our choice. The factor: Hedges,
    Journal of Educational Statistics 6, 1981; the interval: Johnson and Welch,
    "Applications of the non-central t-distribution", Biometrika 31, 1940, normal
    approximation.

    Args:
        signals: Higher where a model knows a record better, such as log-odds of its
            class.
        is_in: Which model was trained on which record.
        is_out: Which model knows nothing of it.

    Example:
        >>> signals = np.array([[2.0], [3.0], [4.0], [0.0], [1.0], [2.0]])
        >>> inside = np.array([[True]] * 3 + [[False]] * 3)
        >>> found = record_losses(signals, inside, ~inside)
        >>> found.value.round(1), found.low.round(1), found.high.round(1)
        (array([1.6]), array([-0.2]), array([4.]))
    """
    counts = is_in.sum(axis=0), is_out.sum(axis=0)
    enough = np.minimum(*counts) >= FEWEST_MODELS
    n_in, n_out = (np.maximum(count, FEWEST_MODELS) for count in counts)
    means, squares = zip(
        *(_moments(signals, one) for one in (is_in, is_out)), strict=True
    )
    freedom = n_in + n_out - 2.0
    deviation = np.sqrt((squares[0] + squares[1]) / freedom)
    distance = (means[0] - means[1]) / np.maximum(deviation, FLAT)
    error = np.sqrt(1 / n_in + 1 / n_out)
    pivot = distance / error
    centre = pivot * (1 - 1 / (4 * freedom))
    reach = normal_quantile(LEVEL) * np.sqrt(1 + pivot**2 / (2 * freedom))
    value = distance * (1 - 3 / (4 * freedom - 1))
    nothing = np.where(enough, 0.0, np.nan)
    return RecordLosses(
        value + nothing,
        np.minimum((centre - reach) * error, value) + nothing,
        np.maximum((centre + reach) * error, value) + nothing,
        np.where(enough, stdtr(freedom, -pivot), 1.0),
    )


def _moments(
    signals: Float[np.ndarray, "models records"],
    chosen: Bool[np.ndarray, "models records"],
) -> tuple[Float[np.ndarray, " records"], Float[np.ndarray, " records"]]:
    """Return each record's mean over the chosen models, and the sum of squares around it."""
    mean = (signals * chosen).sum(axis=0) / np.maximum(chosen.sum(axis=0), 1)
    return mean, (chosen * (signals - mean) ** 2).sum(axis=0)
