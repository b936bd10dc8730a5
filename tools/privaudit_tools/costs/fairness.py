"""How evenly models serve clients, beyond what a finite test set makes of it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import ndtri

from privaudit.statistics.estimate import Estimate, inflation, weighted_means

CONFIDENCE = 0.95
DRAWS = 4000
Scores = Float[np.ndarray, "clients tests"]


@dataclass(frozen=True)
class Fairness:
    """How accuracy differs between clients, each on its own mixture of test records.

    Attributes:
        metric: What is measured.
        spread: Standard deviation over clients, without what chance adds to it.
        lowest: Of the client that does worst.
        highest: Of the one that does best.
        ratio: Lowest over highest; None if nobody gets anything right.
        clients: How many.
    """

    metric: str
    spread: Estimate
    lowest: float
    highest: float
    ratio: Estimate | None
    clients: int


def fairness_of(scores: Scores, mix: Scores, metric: str) -> Fairness:
    """Return how clients' mean scores differ.

    The replicate is the test record, which may serve several clients: the clients'
    means are taken as normal with the covariance that the records' influences have.

    Args:
        scores: From 0 to 1, of each client's model on each test record.
        mix: What each record weighs for each client, 0 or more.
        metric: What the scores are, in words.
    """
    means, influence = weighted_means(scores, mix)
    tests = int((mix > 0).any(axis=0).sum())
    covariance = influence @ influence.T * inflation(tests)
    high = float(means.max())
    ratio = _ratio(means, covariance, tests) if high > 0 else None
    spread = _spread(means, covariance, tests)
    return Fairness(metric, spread, float(means.min()), high, ratio, len(means))


def _spread(
    means: Float[np.ndarray, " clients"],
    covariance: Float[np.ndarray, "clients clients"],
    tests: int,
) -> Estimate:
    """Return the standard deviation, less what chance adds, by inverting a test.

    A true spread t is held to be possible if means that deviate in the observed
    directions by t, and by chance, would vary as little, or as much, as was observed.
    """
    generator = np.random.default_rng(0)
    clients = len(means)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(clients))
    chance = generator.standard_normal((DRAWS, clients)) @ root.T
    chance -= chance.mean(axis=1, keepdims=True)
    observed = float(means.std())
    direction = (means - means.mean()) / max(observed, 1e-12)
    tail = (1 - CONFIDENCE) / 2

    def beyond(true: float) -> float:
        """Say how probable a larger spread is than the one that was found."""
        return float(((true * direction + chance).std(axis=1) >= observed).mean())

    most = observed + 10 * float(np.sqrt(np.trace(covariance) / clients)) + 1e-6
    value = np.sqrt(max(0.0, observed**2 - float(chance.var(axis=1).mean())))
    low = 0.0 if beyond(0.0) >= tail else brentq(lambda t: beyond(t) - tail, 0, most)
    over = 1 - tail
    high = 0.0 if beyond(0.0) >= over else brentq(lambda t: beyond(t) - over, 0, most)
    method = "normal over test records, test inverted"
    low, high = min(float(low), float(value)), max(float(high), float(value))
    return Estimate(float(value), low, high, (tests,), method, CONFIDENCE)


def _ratio(
    means: Float[np.ndarray, " clients"],
    covariance: Float[np.ndarray, "clients clients"],
    tests: int,
) -> Estimate:
    """Return worst over best, inside what intervals for all clients at once allow."""
    quantile = ndtri(1 - (1 - CONFIDENCE) / (2 * len(means)))
    half = quantile * np.sqrt(np.diag(covariance))
    lower, upper = np.clip(means - half, 0, 1), np.clip(means + half, 0, 1)
    value = float(means.min() / means.max())
    low = float(lower.min() / upper.max())
    high = min(1.0, float(upper.min() / max(lower.max(), 1e-12)))
    method = "simultaneous normal intervals over test records, Bonferroni"
    return Estimate(value, low, max(high, value), (tests,), method, CONFIDENCE)
