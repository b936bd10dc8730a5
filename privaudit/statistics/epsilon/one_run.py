"""Bounds on epsilon from the canaries of one run: right guesses at the extremes, counted."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field
from pydantic.dataclasses import dataclass as options
from scipy.special import bdtr, bdtrc, expit, gammaln, log_expit, logit

from privaudit.core.errors import ConfigError, TooFewRecordsError
from privaudit.statistics.epsilon.bound import (
    AuditBounds,
    AuditCoins,
    AuditScores,
    OneRunMethod,
    largest_rejected,
)
from privaudit.statistics.estimate import clopper_pearson

Counts = Int[np.ndarray, " counts"]
PerCount = Float[np.ndarray, " counts"]
PValue = Callable[[Counts, int, int, PerCount, float], PerCount]


@options(frozen=True, kw_only=True)
class RankedGuesses(OneRunMethod):
    """What bounds from one run share: guess at the extremes, abstain between.

    The numbers of guesses are fixed before the scores are seen; the best of several is
    no bound. Canaries with equal scores are ranked by a fixed shuffle, so that the
    order in which they are given cannot help.

    Attributes:
        guesses_in: The highest scores, guessed to be in.
        guesses_out: The lowest scores, guessed to be out.
        tie_seed: Seed of the shuffle that breaks ties.
    """

    words: ClassVar[str]
    guesses_in: Annotated[int, Field(ge=0)]
    guesses_out: Annotated[int, Field(ge=0)]
    tie_seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        if not self.guesses:
            raise ConfigError(
                "A bound from one run needs guesses, and guesses_in and guesses_out "
                "are 0. Fix how many of the extreme scores to guess at."
            )

    @property
    def method(self) -> str:
        """How the bound is found, in words, with the guesses."""
        return self.words.format(n_in=self.guesses_in, n_out=self.guesses_out)

    @property
    def guesses(self) -> int:
        """How many guesses there are in all."""
        return self.guesses_in + self.guesses_out

    def values(self, scores: AuditScores, is_member: AuditCoins) -> AuditBounds:
        """Return each audit's bound, at least 0."""
        counts, back = np.unique(self.correct(scores, is_member), return_inverse=True)
        return self.epsilon_of(counts, scores.shape[1])[back]

    def ceiling(self, members: int, nonmembers: int) -> float:
        """Return the bound if every guess was right."""
        self._check(members + nonmembers)
        best = self.epsilon_of(np.array([self.guesses]), members + nonmembers)
        return float(best[0])

    @abstractmethod
    def epsilon_of(self, correct: Counts, canaries: int) -> PerCount:
        """Return the bound for each number of right guesses."""

    def correct(
        self, scores: AuditScores, is_member: AuditCoins
    ) -> Int[np.ndarray, " audits"]:
        """Return how many guesses are right; too few canaries are a ConfigError."""
        canaries = scores.shape[1]
        self._check(canaries)
        shuffle = np.random.default_rng(self.tie_seed).permutation(canaries)
        order = np.argsort(scores[:, shuffle], axis=1, kind="stable")
        truth = np.take_along_axis(is_member[:, shuffle], order, axis=1)
        right_in = truth[:, canaries - self.guesses_in :].sum(1)
        right_out = (~truth[:, : self.guesses_out]).sum(1)
        return right_in + right_out

    def _check(self, canaries: int) -> None:
        if canaries < self.guesses:
            raise TooFewRecordsError(
                f"{self.guesses} guesses need as many canaries, and there are "
                f"{canaries}. Insert more, or guess fewer."
            )


@options(frozen=True, kw_only=True)
class OneRunGuesses(RankedGuesses):
    """The largest epsilon at which so many right guesses would be too unlikely.

    Under (epsilon, 0)-DP a guess is right with a chance of at most e^epsilon / (1 +
    e^epsilon), whatever the other coins are, so right guesses are at most binomial.
    delta adds a term that grows with canaries, not with guesses.

    Source: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run",
    NeurIPS 2023, theorem 5.2 and appendix D.

    Example:
        >>> OneRunGuesses(guesses_in=50, guesses_out=50).ceiling(48, 52)
        3.49...
    """

    words = "one-run binomial, {n_in} + {n_out} guesses"

    def epsilon_of(self, correct: Counts, canaries: int) -> PerCount:
        """Return the bound for each number of right guesses."""
        if self.delta == 0:
            return binomial_epsilon(correct, self.guesses, self.significance)
        return _largest_epsilon(self, one_run_p_value, correct, canaries)


def binomial_epsilon(correct: Counts, guesses: int, significance: float) -> PerCount:
    """Return what so many right guesses show at delta = 0, at least 0.

    Randomised response has the binomial tail, so no valid bound shows more.

    Example:
        >>> binomial_epsilon(np.array([80]), 100, 0.05)
        array([0.958...])
    """
    whole = correct.astype(np.float64)
    low, _ = clopper_pearson(whole, guesses, 1 - 2 * significance)
    return np.maximum(logit(low), 0.0)


def _largest_epsilon(
    method: RankedGuesses, p_value: PValue, correct: Counts, canaries: int
) -> PerCount:
    """Return the largest epsilon that so many right guesses reject."""
    guesses, alpha, delta = method.guesses, method.significance, method.delta
    return largest_rejected(
        lambda epsilon: p_value(correct, guesses, canaries, epsilon, delta) < alpha,
        binomial_epsilon(correct, guesses, alpha),
    )


def one_run_p_value(
    correct: Counts, guesses: int, canaries: int, epsilon: PerCount, delta: float
) -> PerCount:
    """Return the chance, at the most, of so many right guesses or more under DP.

    P[X >= v] + 2 m delta max over i of P[v > X >= v - i] / i, for v right ones of r
    guesses at m canaries and X binomial of r and e^epsilon / (1 + e^epsilon); O(r) for
    each count.

    Args:
        correct: v, from 0 to ``guesses``.
        guesses: r, at least 0.
        canaries: m, at least r.
        epsilon: At least 0, for each count.
        delta: In [0, 1).
    """
    beyond = np.where(
        correct > 0, bdtrc(np.maximum(correct - 1, 0), guesses, expit(epsilon)), 1.0
    )
    steps = np.arange(1, max(int(correct.max()), 1) + 1)
    below = correct[:, None] - steps
    outcomes, inside = np.arange(guesses + 1.0), np.maximum(below, 0)
    ways = math.lgamma(guesses + 1) - gammaln(outcomes + 1)
    ways = ways - gammaln(guesses - outcomes + 1)
    right, wrong = log_expit(epsilon)[:, None], log_expit(-epsilon)[:, None]
    log_mass = ways[inside] + inside * right + (guesses - inside) * wrong
    mass = np.where(below >= 0, np.exp(log_mass), 0.0)
    densest = (mass.cumsum(1) / steps).max(1)
    return np.minimum(beyond + 2 * canaries * delta * densest, 1.0)


@options(frozen=True, kw_only=True)
class FDPOneRun(RankedGuesses):
    """The largest epsilon whose trade-off function allows no so many right guesses.

    At delta = 0 it is a little below :class:`OneRunGuesses`; at delta > 0 it can be
    above, as where few of many canaries are guessed at.

    Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one
    run", ICML 2025 (arXiv 2024): the recursion over numbers of right guesses. For the
    trade-off function of (epsilon, delta)-DP it has the closed form given here.
    Published figures take a Gaussian trade-off function instead, and are higher for it:
    see ``labs/privaudit_labs/bounds/gaussian_one_run.py`` of the repository.
    """

    words = "one-run f-DP, {n_in} + {n_out} guesses"

    def epsilon_of(self, correct: Counts, canaries: int) -> PerCount:
        """Return the bound for each number of right guesses."""
        return _largest_epsilon(self, f_dp_one_run_p_value, correct, canaries)


def f_dp_one_run_p_value(
    correct: Counts, guesses: int, canaries: int, epsilon: PerCount, delta: float
) -> PerCount:
    """Return the chance, at the most, of so many right guesses or more under DP; O(1).

    Arguments are those of :func:`one_run_p_value`. Let p_i be the chance of i right
    guesses of r at m canaries. For every i

        sum over j > i of j p_j <= e^epsilon sum over j >= i of (r - j) p_j + delta m.

    Most mass at v and above, for a total of 1, is had with p_v of it at v and equality
    below, where then p_i (r - i) e^epsilon = (i + 1) p_{i+1}: a binomial's ratios. So
    the mass below v is p_{v-1} P[X < v] / P[X = v - 1], with p_{v-1} from the first
    equality, all linear in p_v. (The other branch of the trade-off function begins
    where that mass is 1 already.)
    """
    v = np.maximum(correct, 1)
    share = _share_at(v - 1, guesses, epsilon) * (guesses - v + 1)
    weight = np.exp(-epsilon)
    excess = weight * v - (guesses - v)
    p_value = (share + weight * delta * canaries) / np.maximum(share + excess, 1e-300)
    return np.where((excess > 0) & (correct > 0), np.minimum(p_value, 1.0), 1.0)


def _share_at(successes: Counts, trials: int, epsilon: PerCount) -> PerCount:
    """Return P[X = successes] / P[X <= successes], X as likely right as DP allows."""
    failures = trials - successes
    ways = math.lgamma(trials + 1) - gammaln(successes + 1) - gammaln(failures + 1)
    log_mass = ways + successes * log_expit(epsilon) + failures * log_expit(-epsilon)
    below = bdtr(successes, trials, 1 / (1 + np.exp(-epsilon)))
    return np.exp(log_mass) / np.maximum(below, 1e-300)
