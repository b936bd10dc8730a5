"""One run: the bound of Steinke, Nasr and Jagielski.

Source: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
NeurIPS 2023, theorem 5.2 and appendix D.
"""

import math

import numpy as np
from jaxtyping import Float, Int
from pydantic.dataclasses import dataclass as options
from scipy.special import bdtrc, expit, gammaln, log_expit, logit

from privaudit.statistics.epsilon.bisection import largest_rejected
from privaudit.statistics.epsilon.ranked_guesses import RankedGuesses
from privaudit.statistics.intervals import clopper_pearson


@options(frozen=True, kw_only=True)
class OneRunGuesses(RankedGuesses):
    """The largest epsilon at which so many right guesses would be too unlikely.

    Under (epsilon, 0)-DP a guess is right with a chance of at most e^epsilon / (1 +
    e^epsilon), whatever the other coins are, so right guesses are at most binomial.
    delta adds a term that grows with canaries, not with guesses.

    Source: of this module.

    Example:
        >>> OneRunGuesses(guesses_in=50, guesses_out=50).ceiling(48, 52)
        3.49...
    """

    @property
    def method(self) -> str:
        """How the bound is found, in words, with the guesses."""
        return f"one-run binomial, {self.guesses_in} + {self.guesses_out} guesses"

    def epsilon_of(
        self, correct: Int[np.ndarray, " counts"], canaries: int
    ) -> Float[np.ndarray, " counts"]:
        """Return the bound for each number of right guesses."""
        return one_run_epsilon(
            correct,
            self.guesses,
            canaries,
            significance=self.significance,
            delta=self.delta,
        )


def one_run_epsilon(
    correct: Int[np.ndarray, " counts"],
    guesses: int,
    canaries: int,
    *,
    significance: float,
    delta: float,
) -> Float[np.ndarray, " counts"]:
    """Return the lower bounds on epsilon for so many right guesses, at least 0.

    Example:
        >>> one_run_epsilon(np.array([80]), 100, 1000, significance=0.05, delta=0.0)
        array([0.958...])
    """
    whole = correct.astype(np.float64)
    low, _ = clopper_pearson(whole, guesses, 1 - 2 * significance)
    pure = np.maximum(logit(low), 0.0)
    if delta == 0:
        return pure

    return largest_rejected(
        lambda epsilon: (
            one_run_p_value(correct, guesses, canaries, epsilon, delta) < significance
        ),
        pure,
    )


def one_run_p_value(
    correct: Int[np.ndarray, " counts"],
    guesses: int,
    canaries: int,
    epsilon: Float[np.ndarray, " counts"],
    delta: float,
) -> Float[np.ndarray, " counts"]:
    """Return the chance, at the most, of so many right guesses or more under DP.

    P[X >= v] + 2 m delta max over i of P[v > X >= v - i] / i, for v right ones of r
    guesses at m canaries and X binomial of r and e^epsilon / (1 + e^epsilon); O(r) for
    each count.

    Args:
        correct: v, from 0 to ``guesses``.
        guesses: r.
        canaries: m, at least r.
        epsilon: At least 0, for each count.
        delta: In [0, 1).
    """
    beyond = np.where(
        correct > 0, bdtrc(np.maximum(correct - 1, 0), guesses, expit(epsilon)), 1.0
    )
    if delta == 0:
        return beyond
    steps = np.arange(1, max(int(correct.max()), 1) + 1)
    below = correct[:, None] - steps
    mass = np.where(below >= 0, np.exp(_log_binomial(below, guesses, epsilon)), 0.0)
    densest = (mass.cumsum(1) / steps).max(1)
    return np.minimum(beyond + 2 * canaries * delta * densest, 1.0)


def _log_binomial(
    successes: Int[np.ndarray, "counts outcomes"],
    trials: int,
    epsilon: Float[np.ndarray, " counts"],
) -> Float[np.ndarray, "counts outcomes"]:
    """Return log P[X = successes] for a chance of e^epsilon / (1 + e^epsilon)."""
    outcomes = np.arange(trials + 1.0)
    ways = (
        math.lgamma(trials + 1) - gammaln(outcomes + 1) - gammaln(trials - outcomes + 1)
    )
    inside = np.maximum(successes, 0)
    right, wrong = log_expit(epsilon)[:, None], log_expit(-epsilon)[:, None]
    return ways[inside] + inside * right + (trials - inside) * wrong
