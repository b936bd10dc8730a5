"""Do verdicts and intervals hold with ties and with unequal classes?

Two ways. Scores of 0 and 1 with one rate in both classes: every outcome is weighed by
its chance, and nothing but an audit's permutations is drawn. Thirteen distributions, tied
or not, alike in both classes or shifted to a true AUROC: simulated.
``benchmarks/bench_false_alarms.py`` beside this folder prints tables of intervals.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.optimize import bisect
from scipy.special import expit, logit, ndtri, stdtrit
from scipy.stats import binom

from privaudit.statistics import roc
from privaudit.statistics.estimate import Estimate
from privaudit_tools.selftest.check import SelftestCheck, Trial, share_of
from privaudit_tools.selftest.claims import judged

_GROUP = "ties and unequal classes"
RATES = (0.01, 0.02, 0.05, 0.1, 0.5, 0.9, 0.95, 0.98)
_IGNORED = 1e-7  # outcomes less likely than this at every rate

Uniforms = Float[np.ndarray, " n"]
Distribution = Callable[[Uniforms, float, bool], Float[np.ndarray, " n"]]


def _two_humps(u: Uniforms) -> Float[np.ndarray, " n"]:
    return np.where(u < 0.5, ndtri(2 * u % 1), 4 + ndtri(2 * u % 1))


DISTRIBUTIONS: Mapping[str, Distribution] = {
    "normal": lambda u, shift, _: ndtri(u) + shift,
    "t, 3 degrees": lambda u, shift, _: stdtrit(3, u) + shift,
    "Cauchy": lambda u, shift, _: np.tan(np.pi * (u - 0.5)) + shift,
    "exponential": lambda u, shift, _: -np.log1p(-u) * np.exp(shift),
    "lognormal": lambda u, shift, _: np.exp(ndtri(u)) + shift,
    "uniform": lambda u, shift, _: u + shift,
    "beta (1/2, 1/2)": lambda u, shift, _: np.sin(np.pi * u / 2) ** 2 + shift,
    "two humps": lambda u, shift, _: _two_humps(u) + shift,
    "normal, rounded": lambda u, shift, _: np.round(ndtri(u) + shift),
    "0 or 1": lambda u, shift, _: 1.0 * (u < expit(logit(0.1) + shift)),
    "three values": lambda u, shift, _: np.digitize(ndtri(u) + shift, [-0.5, 1.2]) / 2,
    "84 % tie at 0": lambda u, shift, _: np.maximum(ndtri(u) - 1 + shift, 0),
    "spread x 3": lambda u, shift, member: ndtri(u) * (3 if member else 1) + shift,
}
"""Scores of uniform draws; members are shifted, and spread more in the last."""


@cache
def shift_of(distribution: Distribution, auroc: float) -> float:
    """Return the shift of members at which the AUROC is this, to 1e-4."""
    if auroc == 0.5:
        return 0.0
    u = (np.arange(4000) + 0.5) / 4000

    def beyond(shift: float) -> float:
        members, others = distribution(u, shift, True), distribution(u, 0.0, False)
        return roc.delong_components(members, others).value - auroc

    return float(bisect(beyond, 0.0, 50.0, xtol=1e-6))


def interval_of(
    distribution: Distribution,
    sizes: tuple[int, int],
    shift: float,
    rng: np.random.Generator,
) -> Estimate:
    """Return the AUROC of one draw of so many members and non-members."""
    members, others = (rng.uniform(1e-12, 1, size) for size in sizes)
    return roc.auroc(
        distribution(members, shift, True), distribution(others, 0.0, False)
    )


Scores = Float[np.ndarray, " _"]
Says = Callable[[Scores, Scores], Sequence[bool]]
"""What is said of members' and others' scores."""


def of_an_audit(members: Scores, others: Scores) -> Sequence[bool]:
    """Say whether an audit's verdict is "leaks"."""
    return [judged([(members, others)]).kind == "leaks"]


def of_an_interval(members: Scores, others: Scores) -> Sequence[bool]:
    """Say whether the AUROC's interval lies above 0.5, and whether it excludes that."""
    estimate = roc.auroc(members, others)
    return [estimate.low > 0.5, estimate.excludes(0.5)]


def exact_rates(
    sizes: tuple[int, int], says: Says, rates: Sequence[float] = RATES
) -> Float[np.ndarray, "rates said"]:
    """Return the chance of what is said, for each rate.

    Exact: of scores that are 1 at that rate and 0 else, in both classes.
    """
    inside, outside = (
        np.array([binom.pmf(np.arange(size + 1), size, rate) for rate in rates])
        for size in sizes
    )
    likely = [chance.max(axis=0) > _IGNORED for chance in (inside, outside)]
    found = []
    for i, j in product(*map(np.flatnonzero, likely)):
        said = says(1.0 * (np.arange(sizes[0]) < i), 1.0 * (np.arange(sizes[1]) < j))
        found.append(np.outer(inside[:, i] * outside[:, j], np.array(said)))
    return np.sum(found, axis=0)


def _exact(sizes: tuple[int, int], says: Says) -> Callable[[object], Estimate]:
    """Return a measure that draws nothing: the worst rate's chance of what is said first."""

    def measure(_: object) -> Estimate:
        worst = float(exact_rates(sizes, says)[:, 0].max())
        return Estimate(worst, worst, worst, sizes, "exact enumeration")

    return measure


def _misses(sizes: tuple[int, int], auroc: float) -> Trial:
    """Return a trial: one of the distributions, and whether its AUROC is missed."""
    distributions = list(DISTRIBUTIONS.values())

    def trial(rng: np.random.Generator) -> bool:
        one = distributions[rng.integers(len(distributions))]
        return interval_of(one, sizes, shift_of(one, auroc), rng).excludes(auroc)

    return trial


def named(sizes: tuple[int, int]) -> str:
    """Return a pair of sizes as tables have it."""
    return f"{sizes[0]} + {sizes[1]}"


_FEW: tuple[tuple[int, int], ...] = ((20, 20), (100, 10), (10, 100), (60, 20))
CHECKS = (
    *(
        SelftestCheck(
            _GROUP,
            f"0/1 scores of one rate, {named(sizes)}, {what} (exact)",
            0.0,
            0.03,
            _exact(sizes, says),
        )
        for sizes in _FEW
        for what, says in (
            ("called a leak", of_an_audit),
            ("interval above 0.5", of_an_interval),
        )
    ),
    *(
        SelftestCheck(
            _GROUP,
            f"13 distributions, {named(sizes)}, miss {auroc:g}",
            0.0,
            0.06,
            share_of(_misses(sizes, auroc), 400),
        )
        for sizes, auroc in (((100, 10), 0.5), ((10, 200), 0.5), ((10, 100), 0.9))
    ),
)
