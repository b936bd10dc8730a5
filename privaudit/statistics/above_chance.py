"""Does an AUROC lie above 0.5? The p-value that belongs to its interval."""

import math

from scipy.special import logit, ndtr

from privaudit.statistics.estimate import Estimate
from privaudit.statistics.intervals import normal_quantile


def p_above_chance(auroc: Estimate) -> float:
    """Return twice the one-sided p-value of an AUROC of at most 0.5, at most 1.

    It is at most alpha just where an interval of confidence 1 - alpha lies wholly above
    0.5, so that "leaks" and a p-value of one attack never disagree. 1 where there is no
    interval, and where the AUROC is not above 0.5: the direction was fixed beforehand.

    Source: the interval of :func:`privaudit.statistics.delong.auroc_interval`, solved
    for the confidence at which it ends at 0.5; at an AUROC of 1 its exact one.

    Args:
        auroc: As :func:`privaudit.statistics.roc.auroc` or
            :func:`privaudit.statistics.roc.pooled_auroc` return it, for these clients:
            symmetric on the logit scale.

    Example:
        >>> round(p_above_chance(Estimate(0.6, 0.5, 0.6923, (50, 50), "AUROC")), 3)
        0.05
    """
    if auroc.unresolved or auroc.value <= 0.5 or auroc.low <= 0:
        return 1.0
    if auroc.value == 1:
        pairs = math.log((1 - auroc.confidence) / 2) / math.log(auroc.low)
        return min(2 * 0.5**pairs, 1.0)
    error = (logit(auroc.value) - logit(auroc.low)) / normal_quantile(auroc.confidence)
    return float(2 * ndtr(-logit(auroc.value) / error))
