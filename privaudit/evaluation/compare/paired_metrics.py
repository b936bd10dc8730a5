"""The metrics in which two audited runs, or two settings, are compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from privaudit.auditing.storage.load import StoredAudit
from privaudit.evaluation.compare.comparable import (
    ClientPair,
    TestScores,
    pair_clients,
    pair_tests,
)
from privaudit.federated.runs.runs import Run
from privaudit.federated.runs.utility import mean_accuracy
from privaudit.statistics.change import IntervalAt
from privaudit.statistics.comparisons import (
    paired_accuracy_difference,
    paired_auroc_at,
)
from privaudit.statistics.estimate import Estimate, paired_difference
from privaudit.statistics.roc import pooled_auroc

About = Literal["leak", "use"]

_USE = " on own classes"


@dataclass(frozen=True)
class Measured:
    """One metric of two runs, or two settings.

    Attributes:
        name: Such as "loss-threshold AUROC".
        about: A leak is worse where it is higher, a use where it is lower.
        first: The first run's value, or the mean over seeds.
        second: The other's.
        interval_at: First less second, paired, at any confidence.
    """

    name: str
    about: About
    first: float
    second: float
    interval_at: IntervalAt


def measure_pair(
    first: StoredAudit, second: StoredAudit, attacks: Sequence[str], utility: bool
) -> list[Measured]:
    """Return every metric, with records as replicates."""
    metrics = []
    for name in attacks:
        pairs = pair_clients(name, first.clients(name), second.clients(name))
        metrics += [_auroc(name, pairs), _success(name, pairs)]
    return [*metrics, _use(first.run, second.run)] if utility else metrics


def _auroc(name: str, pairs: Sequence[ClientPair]) -> Measured:
    at = paired_auroc_at(
        [(p.first.scores, p.second.scores, p.is_member) for p in pairs]
    )

    def interval_at(confidence: float) -> Estimate:
        return at(confidence).estimate

    first_auroc = pooled_auroc([pair.first.groups for pair in pairs]).value
    second_auroc = pooled_auroc([pair.second.groups for pair in pairs]).value
    return Measured(f"{name} AUROC", "leak", first_auroc, second_auroc, interval_at)


def _success(name: str, pairs: Sequence[ClientPair]) -> Measured:
    first_correct, second_correct = (
        np.concatenate([getattr(p, who).guesses == p.is_member for p in pairs])
        for who in ("first", "second")
    )

    def interval_at(confidence: float) -> Estimate:
        return paired_accuracy_difference(
            first_correct, second_correct, confidence
        ).estimate

    values = float(first_correct.mean()), float(second_correct.mean())
    return Measured(f"{name} success rate", "leak", *values, interval_at)


def _use(first: Run, second: Run) -> Measured:
    return measure_use(*pair_tests(first, second))


def measure_use(ours: TestScores, theirs: TestScores) -> Measured:
    """Return the utility of two runs, on the same test records."""
    differences, own_mask = ours.scores - theirs.scores, ours.own

    def interval_at(confidence: float) -> Estimate:
        if (differences == 0).all():  # the linearised interval would have no width
            same = np.ones(own_mask.any(axis=0).sum(), bool)
            return paired_accuracy_difference(same, same, confidence).estimate
        return mean_accuracy(differences, own_mask, confidence)

    return Measured(
        f"{ours.metric}{_USE}",
        "use",
        mean_accuracy(ours.scores, own_mask).value,
        mean_accuracy(theirs.scores, own_mask).value,
        interval_at,
    )


def measure_seeds(
    audits: Sequence[tuple[StoredAudit, StoredAudit]],
    attacks: Sequence[str],
    utility: bool,
) -> list[Measured]:
    """Return every metric, with seeds as replicates; no record need be shared.

    The values are those that the audits stored, each on its own run's records.
    """
    first_values, second_values = (
        [_values(pair[side], attacks, utility) for pair in audits] for side in (0, 1)
    )
    metrics = []
    for name in first_values[0]:
        first, second = (
            [v[name] for v in values] for values in (first_values, second_values)
        )
        about: About = "use" if name.endswith(_USE) else "leak"
        interval_at = partial(paired_difference, first, second)
        means = float(np.mean(first)), float(np.mean(second))
        metrics.append(Measured(name, about, *means, interval_at))
    return metrics


def _values(
    audit: StoredAudit, attacks: Sequence[str], utility: bool
) -> dict[str, float]:
    values = {}
    for name in attacks:
        leak = audit.leak(name)
        values[f"{name} AUROC"] = leak["auroc"]["value"]
        values[f"{name} success rate"] = leak["success_plain"]["value"]
    if utility:
        use = audit.contents["utility"]
        values[f"{use['metric']}{_USE}"] = use["local"]["value"]
    return values
