"""What a model is good for: accuracy on a client's own and its neighbours' classes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from privaudit.errors import ConfigError
from privaudit.population import Population
from privaudit.statistics.estimate import Estimate
from privaudit.tensors import Tensors
from privaudit.trainer import ClientId, Trainer, ask_each


@dataclass(frozen=True)
class Utility:
    """Accuracy of the personal models, averaged over clients.

    Attributes:
        local: On the test records of the client's own classes, and its own domain.
        neighbour: On all others; None if every client owns all.
        gain: Local accuracy beyond the zero-shot model's, on the same records.
        zero_shot: The zero-shot model's local accuracy.
        mix: On test records mixed as the client's candidates are, by class and domain:
            what tables on Dirichlet partitions report.
    """

    local: Estimate
    neighbour: Estimate | None
    gain: Estimate
    zero_shot: Estimate
    mix: Estimate


def measure_clients(
    trainer: Trainer, population: Population, models: Mapping[ClientId, Tensors]
) -> Utility:
    """Return the utility of each client's personal model."""
    tests = population.tests
    answers = ask_each(trainer, population.task, list(models.values()), tests)
    correct = (answers.argmax(dim=-1) == tests.labels).numpy()
    blind = (tests.features @ population.task.zero_shot.T).argmax(dim=-1)
    plain = np.broadcast_to((blind == tests.labels).numpy(), correct.shape)
    own = np.stack([population.own_records(client).numpy() for client in models])
    mix = np.stack([population.mix(client).numpy() for client in models])
    return Utility(
        local=mean_accuracy(correct.astype(float), own),
        neighbour=mean_accuracy(correct.astype(float), ~own) if (~own).any() else None,
        gain=mean_accuracy(correct.astype(float) - plain, own),
        zero_shot=mean_accuracy(plain.astype(float), own),
        mix=mean_accuracy(correct.astype(float), mix),
    )


def mean_accuracy(
    scores: Float[np.ndarray, "clients tests"],
    counted: Bool[np.ndarray, "clients tests"] | Float[np.ndarray, "clients tests"],
    confidence: float = 0.95,
) -> Estimate:
    """Return the mean over clients of each client's mean over its test records.

    A test record serves several clients, so the replicate is the record: the variance
    is the sum over records of its squared influence (linearisation, normal interval).
    It says how the number would move with other test records, not with other clients.

    Args:
        scores: 0 or 1 for each client and record, or a difference of two such.
        counted: Which records count for which client, or how much: weights of 0 or
            more, of any sum.
        confidence: Coverage, in (0, 1).

    Raises:
        ConfigError: No record counts for any client.
    """
    used = counted.any(axis=1)
    if not used.any():
        raise ConfigError(
            f"None of {counted.shape[1]} test records counts for any of "
            f"{counted.shape[0]} clients, so that there is no accuracy. Take a larger "
            "test_share, or data whose test records are of the clients' classes."
        )
    scores, counted = scores[used], counted[used]
    share = counted / counted.sum(axis=1, keepdims=True)
    means = (scores * share).sum(axis=1)
    influence = ((scores - means[:, None]) * share).mean(axis=0)
    records = int(counted.any(axis=0).sum())
    inflate = records / max(1, records - 1)
    half = norm.ppf((1 + confidence) / 2) * np.sqrt((influence**2).sum() * inflate)
    value = float(means.mean())
    low = max(float(value - half), float(scores.min(initial=0.0)))
    high = min(float(value + half), 1.0)
    method = "mean over clients, linearised over test records"
    return Estimate(value, low, high, (records,), method, confidence)
