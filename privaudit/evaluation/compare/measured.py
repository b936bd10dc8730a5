"""All metrics of two audited runs, or of two settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from privaudit.auditing.storage.load import StoredAudit
from privaudit.evaluation.compare.comparable import (
    TestScores,
    pair_clients,
    pair_tests,
    score_tests,
)
from privaudit.evaluation.metric import Metric, PairedNumbers, Side, metrics_of
from privaudit.statistics.estimate import paired_difference


@dataclass(frozen=True)
class Measured:
    """One metric of two runs, or two settings.

    Attributes:
        of: An attack, or what utility is measured by.
        numbers: Both values, or means over seeds, and the interval of their difference.
    """

    metric: Metric[Any]
    of: str
    numbers: PairedNumbers

    @property
    def name(self) -> str:
        """Such as "loss-threshold AUROC"."""
        return self.metric.name(self.of)

    @property
    def about(self) -> Side:
        """A leak is worse where it is higher, a use where it is lower."""
        return self.metric.side


def measure_pair(
    first: StoredAudit, second: StoredAudit, attacks: Sequence[str], utility: bool
) -> list[Measured]:
    """Return every metric, with records as replicates."""
    found = measure_attacks(first, second, attacks)
    return (
        [*found, *measure_utility(*pair_tests(first.run, second.run))]
        if utility
        else found
    )


def measure_attacks(
    first: StoredAudit,
    second: StoredAudit,
    attacks: Sequence[str],
    codes: Sequence[str] | None = None,
) -> list[Measured]:
    """Return metrics of attacks, by attack; by default all metrics."""
    pairs = {
        name: pair_clients(name, first.clients(name), second.clients(name))
        for name in attacks
    }
    return [
        Measured(metric, name, metric.paired(*pair))
        for name, pair in pairs.items()
        for metric in metrics_of("leak", codes)
    ]


def measure_utility(
    ours: TestScores, theirs: TestScores, codes: Sequence[str] | None = None
) -> list[Measured]:
    """Return metrics of utility of two runs, on the same test records."""
    return [
        Measured(metric, ours.metric, metric.paired(ours, theirs))
        for metric in metrics_of("use", codes)
    ]


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
    found = []
    for metric, of in first_values[0]:
        first, second = (
            [v[metric, of] for v in values] for values in (first_values, second_values)
        )
        interval_at = partial(paired_difference, first, second)
        means = float(np.mean(first)), float(np.mean(second))
        found.append(Measured(metric, of, PairedNumbers(*means, interval_at)))
    return found


def _values(
    audit: StoredAudit, attacks: Sequence[str], utility: bool
) -> dict[tuple[Metric[Any], str], float]:
    values = {
        (m, name): m.stored(audit.leak(name), partial(audit.clients, name))
        for name in attacks
        for m in metrics_of("leak")
    }
    if utility:
        use = audit.contents["utility"]
        for m in metrics_of("use"):
            values[m, use["metric"]] = m.stored(use, partial(score_tests, audit.run))
    return values
