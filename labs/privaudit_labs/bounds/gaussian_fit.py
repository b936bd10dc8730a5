"""Many runs, informative only: the Gaussian mechanism that the error rates suggest."""

from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Shaped
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import ndtri

from privaudit.privacy.accountant import gaussian_epsilon
from privaudit.statistics.epsilon.bound import ManyRunsMethod
from privaudit.statistics.epsilon.many_runs import errors_at, highest_error_rates

Grid = Annotated[tuple[float, ...], Field(min_length=1)]


@options(frozen=True, kw_only=True)
class GaussianFit(ManyRunsMethod):
    """The epsilon of the Gaussian mechanism that fits upper bounds on the error rates.

    If the mechanism is Gaussian, one pair of error rates gives its mu, and mu gives
    epsilon at any delta, also where no canary was seen. If it is not, the figure can be
    above the truth: under randomised response it mostly is. So it cannot refute.

    Source: Nasr et al., "Tight auditing of differentially private machine learning",
    USENIX Security 2023; Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84,
    2022. Bonferroni over a fixed grid as in ``privaudit_tools.selftest.fixed_grid``.

    Attributes:
        thresholds: Fixed before the scores were seen.
        delta: At which epsilon is meant, in (0, 1): at 0 it is infinite.
    """

    can_refute: ClassVar[bool] = False

    thresholds: Grid
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    @property
    def method(self) -> str:
        """How the figure is found, in words, with the size of the grid."""
        return (
            f"Gaussian mechanism assumed, Clopper-Pearson, {len(self.thresholds)} "
            "thresholds fixed in advance"
        )

    def values(
        self,
        scores: Shaped[np.ndarray, "audits canaries"],
        is_member: Bool[np.ndarray, "audits canaries"],
    ) -> Float[np.ndarray, " audits"]:
        """Return each audit's figure, at least 0."""
        grid = np.broadcast_to(self.thresholds, (len(scores), len(self.thresholds)))
        errors = errors_at(grid, scores, is_member, np.ones_like(is_member))
        trials = is_member.sum(1), (~is_member).sum(1)
        tail = self.significance / len(self.thresholds) / 2
        fnr, fpr = map(highest_error_rates, errors, trials, (tail, tail))
        mu = (ndtri(1 - fpr) + ndtri(1 - fnr)).max(1)  # -inf where a rate is 1
        return epsilon_from_mu(mu, self.delta)

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the figure if one of the thresholds made no error."""
        none = np.zeros((1, 1), np.int64)
        tail = self.significance / len(self.thresholds) / 2
        rates = [
            highest_error_rates(none, np.array([n]), tail)[0]
            for n in (members, nonmembers)
        ]
        mu = ndtri(1 - rates[0]) + ndtri(1 - rates[1])
        return float(epsilon_from_mu(mu, self.delta)[0])


def epsilon_from_mu(
    mu: Float[np.ndarray, " audits"], delta: float
) -> Float[np.ndarray, " audits"]:
    """Return the Gaussian mechanism's epsilon, 0 for a mu that is not above 0."""
    distinct, back = np.unique(mu, return_inverse=True)
    epsilon = [gaussian_epsilon(m, delta) if m > 0 else 0.0 for m in distinct.tolist()]
    return np.array(epsilon)[back]
