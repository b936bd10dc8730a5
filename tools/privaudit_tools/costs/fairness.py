"""How evenly models serve clients, beyond what a finite test set makes of it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from privaudit.statistics.estimate import (
    Estimate,
    clopper_pearson,
    inflation,
    needs,
    unresolved,
    weighted_means,
)

CONFIDENCE = 0.95
DRAWS = 4000
FEWEST = 50  # of a client's test records: with 20 the spread's intervals miss 15 %
Scores = Float[np.ndarray, "clients tests"]


@dataclass(frozen=True)
class Fairness:
    """How accuracy differs between clients, each on its own mixture of test records.

    Attributes:
        metric: What is measured.
        spread: Standard deviation over clients, without what chance adds to it;
            unresolved where a client has few test records, or all right or all wrong:
            its mean is then not normal.
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
    # Kish's: how many records of equal weight would say as much.
    counts = mix.sum(axis=1) ** 2 / (mix**2).sum(axis=1)
    ratio = _ratio(means, counts, tests) if high > 0 else None
    spread = _spread(means, covariance, tests)
    why = (
        "a client has all right, or all wrong" if means.min() == 0 or high == 1 else ""
    )
    if counts.min() < FEWEST:
        why = needs(FEWEST, "test records of each client", int(counts.min()))
    if why:
        spread = unresolved(why, (tests,), spread.method, CONFIDENCE, spread.value)
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
    counts: Float[np.ndarray, " clients"],
    tests: int,
) -> Estimate:
    """Return worst over best, inside what intervals for all clients at once allow.

    Of scores between 0 and 1 too: none varies more than right and wrong of that mean.
    """
    each = 1 - (1 - CONFIDENCE) / len(means)
    bounds = [
        clopper_pearson(np.array([mean * count]), float(count), each)
        for mean, count in zip(means, counts, strict=True)
    ]
    lower, upper = np.hstack(bounds)
    value = float(means.min() / means.max())
    low = float(lower.min() / upper.max())
    high = min(1.0, float(upper.min() / max(lower.max(), 1e-12)))
    method = "simultaneous Clopper-Pearson intervals over test records, Bonferroni"
    return Estimate(value, low, max(high, value), (tests,), method, CONFIDENCE)
