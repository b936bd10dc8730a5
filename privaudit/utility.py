"""What a model is good for: accuracy on a client's own and its neighbours' classes."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.stats import norm

from privaudit.population import Population
from privaudit.statistics.estimate import Estimate
from privaudit.tensors import Tensors, stack
from privaudit.trainer import ClientId, Trainer, ask

Correct = Bool[np.ndarray, "clients tests"]


@dataclass(frozen=True)
class Utility:
    """Accuracy of the personal models, averaged over clients.

    Attributes:
        local: On the test records of the client's own classes.
        neighbour: On those of all other classes; None if every client owns all.
        gain: Local accuracy beyond the zero-shot model's, on the same records.
        zero_shot: The zero-shot model's local accuracy.
    """

    local: Estimate
    neighbour: Estimate | None
    gain: Estimate
    zero_shot: Estimate


def measure_clients(
    trainer: Trainer, population: Population, models: Mapping[ClientId, Tensors]
) -> Utility:
    """Return the utility of each client's personal model."""
    tests = population.tests
    answers = ask(trainer, population.task, stack(list(models.values())), tests)
    correct = (answers.argmax(dim=-1) == tests.labels).numpy()
    blind = (tests.features @ population.task.zero_shot.T).argmax(dim=-1)
    plain = np.broadcast_to((blind == tests.labels).numpy(), correct.shape)
    own = np.stack(
        [
            torch.isin(tests.labels, population.own_classes(client)).numpy()
            for client in models
        ]
    )
    return Utility(
        local=mean_accuracy(correct.astype(float), own),
        neighbour=mean_accuracy(correct.astype(float), ~own) if (~own).any() else None,
        gain=mean_accuracy(correct.astype(float) - plain, own),
        zero_shot=mean_accuracy(plain.astype(float), own),
    )


def mean_accuracy(
    scores: Float[np.ndarray, "clients tests"],
    counted: Bool[np.ndarray, "clients tests"],
    confidence: float = 0.95,
) -> Estimate:
    """Return the mean over clients of each client's mean over its test records.

    A test record serves several clients, so the replicate is the record: the variance
    is the sum over records of its squared influence (linearisation, normal interval).
    It says how the number would move with other test records, not with other clients.

    Args:
        scores: 0 or 1 for each client and record, or a difference of two such.
        counted: Which records count for which client.
        confidence: Coverage, in (0, 1).
    """
    used = counted.any(axis=1)
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
