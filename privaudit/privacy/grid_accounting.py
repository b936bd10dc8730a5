r"""Accounting of noise on a grid: what it costs more than Gaussian noise.

Let g be the grid's step and m the noise's standard deviation in steps. Beside the
discrete Gaussian P on the integers stands Q, the Gaussian N(0, m^2) rounded to the
nearest integer. Q on rounded values is a function of the Gaussian mechanism on them, so
accountants' bounds hold for it. Two things are left.

**Rounding** d values to the nearest step moves neighbours apart by at most sqrt(d) g
more: a noise multiplier z becomes 1 / (1/z + sqrt(d) / m). Rounding toward zero leaves
a clipped upload in its ball, and costs nothing.

**P against Q.** With u uniform in [-1/2, 1/2],

    Q(k) / P(k) = theta E[exp(-k u / m^2 - u^2 / 2 m^2)],

where theta = 1 + 2 sum_j exp(-2 pi^2 m^2 j^2) normalises P (Poisson summation). By
Jensen's inequality, as E u = 0 and E u^2 = 1/12, this is at least exp(-1 / 24 m^2); by
E exp(-a u) = sinh(a/2) / (a/2) <= exp(a^2 / 24) it is at most theta exp(k^2 / 24 m^4).
So over all n numbers of all releases, adaptive and sampled as they may be (densities
multiply, and samples that nobody sees are averaged over), for every event S

    P(S) <= e^A Q(S),                     A = n (1 / 24 m^2 + tau)
    Q(S) <= e^B P(S) + beta,              B = R / 24 m^4 + n tau

with R a bound that the sum of all squared k passes under Q with a chance of beta at
most: k = N + u with N Gaussian, so by the triangle inequality and a tail bound of
chi-square sqrt(R) = m sqrt(n + 2 sqrt(n x) + 2 x) + sqrt(n) / 2 with x = ln(1 / beta).
If the Gaussian mechanisms are (epsilon, delta')-private, the discrete ones therefore
are (epsilon + A + B, e^A delta' + e^(A + epsilon) beta)-private.

**Sums** of up to N parties' discrete Gaussians of m steps each are a discrete Gaussian
of m sqrt(N) steps, but for a factor within e^tau either way; tau = 10 N exp(-pi^2 m^2)
covers the published 10 sum_(k<N) exp(-2 pi^2 m^2 k / (k + 1)), and theta. Less of m
only adds to A and B, so one party's counts.

At m = 2^17 all of this adds 5e-12 to epsilon for every number that is ever noised.

Sources: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy",
NeurIPS 2020 (Poisson summation); Kairouz, Liu and Steinke, "The distributed discrete
Gaussian mechanism for federated learning with secure aggregation", ICML 2021, theorem
9 (sums); Laurent and Massart, "Adaptive estimation of a quadratic functional by model
selection", Annals of Statistics 28 (2000), lemma 1 (chi-square).
"""

import math
from collections.abc import Callable

SHARE = 1e-6  # of delta, for the tail: it costs the others nothing to speak of


def discrete_epsilon(
    gaussian: Callable[[float], float],
    delta: float,
    *,
    values: int,
    scale: int,
    parties: int = 1,
) -> float:
    """Return an epsilon of discrete Gaussian noise, from one of Gaussian noise.

    The module says why. Sensitivities are those of rounded values.

    Args:
        gaussian: An upper bound on the Gaussian mechanisms' epsilon by their delta.
        delta: Of the discrete ones, in (0, 1).
        values: How many numbers are noised altogether, at least 1.
        scale: Least standard deviation of one party's noise in steps, at least 1.
        parties: Most of them whose noise is added up, at least 1.

    Example:
        >>> discrete_epsilon(lambda delta: 1.0, 1e-5, values=10**6, scale=2**17) - 1
        4.8...e-06
    """
    each = spread(scale, parties)
    above = values * (1 / (24 * scale**2) + each)
    epsilon = gaussian(delta * (1 - SHARE) * math.exp(-above))
    tail = above + epsilon - math.log(SHARE * delta)
    root = math.sqrt(values + 2 * math.sqrt(values * tail) + 2 * tail)
    radius = root + math.sqrt(values) / (2 * scale)
    return epsilon + above + radius**2 / (24 * scale**2) + values * each


def spread(scale: int, parties: int) -> float:
    """Return tau: how far a sum's chances lie from a discrete Gaussian's, in logs.

    ``scale`` is each party's standard deviation, in steps.
    """
    return 10 * parties * math.exp(-((math.pi * scale) ** 2))


def rounded_noise(noise_multiplier: float, values: int, scale: int | float) -> float:
    """Return the noise multiplier that counts where values are rounded to a grid.

    To the nearest step, which adds sqrt(values) steps to the sensitivity at most, that
    of all values jointly. ``scale`` is the noise's standard deviation in steps.
    """
    return 1 / (1 / noise_multiplier + math.sqrt(values) / scale)


def widened_noise(noise_multiplier: float, values: int, scale: int | float) -> float:
    """Return the noise multiplier of which :func:`rounded_noise` leaves this one.

    Infinite if none does.
    """
    left = 1 / noise_multiplier - math.sqrt(values) / scale
    return 1 / left if left > 0 else math.inf
