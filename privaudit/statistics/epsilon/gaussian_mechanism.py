"""The Gaussian mechanism without sampling, in closed form.

Source: Balle and Wang, "Improving the Gaussian mechanism for differential privacy",
ICML 2018, theorem 5. Gaussian mechanisms compose to one whose squared ``mu``,
sensitivity over standard deviation, is the sum of theirs. scipy.optimize, which takes a
tenth of a command's start, is imported when an epsilon is asked for.
"""

import math

from scipy.special import erfcx, log_ndtr, ndtr

from privaudit.core.parameters import above_zero, probability

_LARGE = 500.0


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta of a Gaussian mechanism of sensitivity / std ``mu``.

    Source: Balle and Wang, "Improving the Gaussian mechanism for differential privacy",
    ICML 2018, theorem 5.
    """
    gap, reach = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    if epsilon > _LARGE:  # the sum below would be a difference of large numbers
        lost = math.exp(-(gap**2) / 2) * float(erfcx(reach / math.sqrt(2))) / 2
    else:
        lost = math.exp(epsilon + float(log_ndtr(-reach)))
    return float(ndtr(gap)) - lost


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a Gaussian mechanism of sensitivity / std ``mu``.

    Gaussian mechanisms compose to one whose squared ``mu`` is the sum of theirs.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 4)
        4.3772
    """
    from scipy.optimize import brentq

    above_zero("mu", mu)
    probability("delta", delta)
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # Concentrated differential privacy gives a bound, and so an end of the bracket.
    high = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0, high, xtol=1e-12))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier with which one step costs ``epsilon``."""
    from scipy.optimize import brentq

    above_zero("epsilon", epsilon)
    probability("delta", delta)
    high = 1.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2

    def excess(mu: float) -> float:
        return gaussian_delta(mu, epsilon) - delta

    return 1 / float(brentq(excess, 1e-9, high, xtol=1e-15, rtol=1e-14))
