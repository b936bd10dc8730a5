"""One run: the bound of Mahloujifar, Melis and Chaudhuri for (epsilon, delta)-DP.

Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run",
ICML 2025 (arXiv 2024): the recursion over numbers of right guesses. For the trade-off
function of (epsilon, delta)-DP it has the closed form given here. Published figures
take a Gaussian trade-off function instead, and are higher for it: see
``labs/privaudit_labs/bounds/gaussian_one_run.py`` of the repository.
"""

import math

import numpy as np
from jaxtyping import Float, Int
from pydantic.dataclasses import dataclass as options
from scipy.special import bdtr, gammaln, log_expit

from privaudit.statistics.epsilon.bound import largest_rejected
from privaudit.statistics.epsilon.one_run import RankedGuesses, one_run_epsilon


@options(frozen=True, kw_only=True)
class FDPOneRun(RankedGuesses):
    """The largest epsilon whose trade-off function allows no so many right guesses.

    At delta = 0 it is a little below :class:`OneRunGuesses`; at delta > 0 it can be
    above, as where few of many canaries are guessed at.

    Source: of this module.
    """

    words = "one-run f-DP, {n_in} + {n_out} guesses"

    def epsilon_of(
        self, correct: Int[np.ndarray, " counts"], canaries: int
    ) -> Float[np.ndarray, " counts"]:
        """Return the bound for each number of right guesses."""
        return f_dp_one_run_epsilon(
            correct, self.guesses, canaries, self.significance, self.delta
        )


def f_dp_one_run_epsilon(
    correct: Int[np.ndarray, " counts"],
    guesses: int,
    canaries: int,
    significance: float,
    delta: float,
) -> Float[np.ndarray, " counts"]:
    """Return the lower bounds on epsilon for so many right guesses, at least 0.

    Randomised response has the binomial tail, so the bound at delta = 0 by that tail is
    the most that any valid bound can give.
    """
    highest = one_run_epsilon(correct, guesses, canaries, significance, 0.0)

    return largest_rejected(
        lambda epsilon: (
            f_dp_one_run_p_value(correct, guesses, canaries, epsilon, delta)
            < significance
        ),
        highest,
    )


def f_dp_one_run_p_value(
    correct: Int[np.ndarray, " counts"],
    guesses: int,
    canaries: int,
    epsilon: Float[np.ndarray, " counts"],
    delta: float,
) -> Float[np.ndarray, " counts"]:
    """Return the chance, at the most, of so many right guesses or more under DP; O(1).

    Let p_i be the chance of i right guesses of r at m canaries. For every i

        sum over j > i of j p_j <= e^epsilon sum over j >= i of (r - j) p_j + delta m.

    Most mass at v and above, for a total of 1, is had with p_v of it at v and equality
    below, where then p_i (r - i) e^epsilon = (i + 1) p_{i+1}: a binomial's ratios. So
    the mass below v is p_{v-1} P[X < v] / P[X = v - 1], with p_{v-1} from the first
    equality, all linear in p_v. (The other branch of the trade-off function begins
    where that mass is 1 already.)

    Args:
        correct: v, from 0 to ``guesses``.
        guesses: r.
        canaries: m, at least r.
        epsilon: At least 0, for each count.
        delta: In [0, 1).
    """
    v = np.maximum(correct, 1)
    share = _share_at(v - 1, guesses, epsilon) * (guesses - v + 1)
    weight = np.exp(-epsilon)
    excess = weight * v - (guesses - v)
    p_value = (share + weight * delta * canaries) / np.maximum(share + excess, 1e-300)
    return np.where((excess > 0) & (correct > 0), np.minimum(p_value, 1.0), 1.0)


def _share_at(
    successes: Int[np.ndarray, " counts"],
    trials: int,
    epsilon: Float[np.ndarray, " counts"],
) -> Float[np.ndarray, " counts"]:
    """Return P[X = successes] / P[X <= successes], X as likely right as DP allows."""
    failures = trials - successes
    ways = math.lgamma(trials + 1) - gammaln(successes + 1) - gammaln(failures + 1)
    log_mass = ways + successes * log_expit(epsilon) + failures * log_expit(-epsilon)
    below = bdtr(successes, trials, 1 / (1 + np.exp(-epsilon)))
    return np.exp(log_mass) / np.maximum(below, 1e-300)
