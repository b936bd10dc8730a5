"""One run, informative only: the Gaussian mechanism that the right guesses suggest."""

from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import expit, ndtr, ndtri

from privaudit.statistics.epsilon.bound import largest_rejected
from privaudit.statistics.epsilon.one_run import RankedGuesses, binomial_epsilon
from privaudit_labs.bounds.gaussian_fit import epsilon_from_mu

NEGLIGIBLE = 1e-13


@options(frozen=True, kw_only=True)
class GaussianOneRun(RankedGuesses):
    """The epsilon of the largest mu at which so many right guesses are too unlikely.

    That is one-run f-DP with the trade-off function of a Gaussian mechanism. If the
    mechanism is one, more is shown than without that knowledge; if it is not, the
    figure can be above the truth, as it is under randomised response. So it cannot
    refute; :class:`FDPOneRun` can.

    Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one
    run", ICML 2025 (arXiv 2024).

    Attributes:
        delta: At which epsilon is meant, in (0, 1): at 0 it is infinite.
    """

    can_refute: ClassVar[bool] = False
    words = "Gaussian mechanism assumed, one-run f-DP, {n_in} + {n_out} guesses"

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def epsilon_of(
        self, correct: Int[np.ndarray, " counts"], canaries: int
    ) -> Float[np.ndarray, " counts"]:
        """Return the figure for each number of right guesses."""
        mu = one_run_mu(correct, self.guesses, canaries, self.significance)
        return epsilon_from_mu(mu, self.delta)


def one_run_mu(
    correct: Int[np.ndarray, " counts"],
    guesses: int,
    canaries: int,
    significance: float,
) -> Float[np.ndarray, " counts"]:
    """Return the largest mu at which so many right guesses are too unlikely.

    A Gaussian mechanism answers each coin rightly with a chance of Phi(mu / 2), so the
    binomial bound on that chance bounds what can come out.
    """
    pure = binomial_epsilon(correct, guesses, significance)

    return largest_rejected(
        lambda mu: too_many_for_mu(correct, guesses, canaries, mu, significance),
        2 * ndtri(expit(pure)),
    )


def too_many_for_mu(
    correct: Int[np.ndarray, " counts"],
    guesses: int,
    canaries: int,
    mu: Float[np.ndarray, " counts"],
    significance: float,
) -> Bool[np.ndarray, " counts"]:
    """Return whether mu-Gaussian DP gives so many right guesses with less chance.

    With p_i as for :func:`privaudit.statistics.epsilon.one_run.
    f_dp_one_run_p_value`, ``right`` and ``wrong`` are the sums of j p_j / m and of (r -
    j) p_j / m over j >= i. From all of the significance at v they grow as far as they
    must; past r / m there is more than a whole of probability.
    """
    right = significance * correct / canaries
    wrong = significance * (guesses - correct) / canaries
    whole, before = guesses / canaries, np.zeros_like(right)
    for i in range(int(correct.max()) - 1, -1, -1):
        least = ndtr(ndtri(np.minimum(right, 1.0)) - mu)
        moved = np.where(i < correct, np.maximum(least - wrong, 0.0), 0.0)
        wrong, right = wrong + moved, right + i / (guesses - i) * moved
        # Steps that fall go on falling: what is left cannot matter, or all is decided.
        left = i * moved * guesses / (guesses - i)
        settled = (left < NEGLIGIBLE * whole) & (moved <= before) & (i < correct)
        if (settled | (right + wrong >= whole)).all():
            break
        before = moved
    return right + wrong >= whole
