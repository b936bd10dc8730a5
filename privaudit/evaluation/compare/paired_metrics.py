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
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, paired_difference
from privaudit.statistics.roc import pooled_auroc

About = Literal["leak", "use"]

_USE = " on own classes"


@dataclass(frozen=True)
class Measured:
    """One metric of two runs, or two settings.

    Attributes:
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
    found = []
    for name in attacks:
        pairs = pair_clients(name, first.clients(name), second.clients(name))
        found += [_auroc(name, pairs), _success(name, pairs)]
    return [*found, _use(first.run, second.run)] if utility else found


def _auroc(name: str, pairs: Sequence[ClientPair]) -> Measured:
    groups = [(p.first.scores, p.second.scores, p.is_member) for p in pairs]

    def interval_at(confidence: float) -> Estimate:
        return pooled_paired_auroc_difference(groups, confidence).estimate

    ours = pooled_auroc([pair.first.groups for pair in pairs]).value
    theirs = pooled_auroc([pair.second.groups for pair in pairs]).value
    return Measured(f"{name} AUROC", "leak", ours, theirs, interval_at)


def _success(name: str, pairs: Sequence[ClientPair]) -> Measured:
    ours, theirs = (
        np.concatenate([getattr(p, who).guesses == p.is_member for p in pairs])
        for who in ("first", "second")
    )

    def interval_at(confidence: float) -> Estimate:
        return paired_accuracy_difference(ours, theirs, confidence).estimate

    values = float(ours.mean()), float(theirs.mean())
    return Measured(f"{name} success rate", "leak", *values, interval_at)


def _use(first: Run, second: Run) -> Measured:
    return measure_use(*pair_tests(first, second))


def measure_use(ours: TestScores, theirs: TestScores) -> Measured:
    """Return the utility of two runs, on the same test records."""
    differences, own = ours.scores - theirs.scores, ours.own

    def interval_at(confidence: float) -> Estimate:
        if (differences == 0).all():  # the linearised interval would have no width
            same = np.ones(own.any(axis=0).sum(), bool)
            return paired_accuracy_difference(same, same, confidence).estimate
        return mean_accuracy(differences, own, confidence)

    return Measured(
        f"{ours.metric}{_USE}",
        "use",
        mean_accuracy(ours.scores, own).value,
        mean_accuracy(theirs.scores, own).value,
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
    ours, theirs = (
        [_values(pair[side], attacks, utility) for pair in audits] for side in (0, 1)
    )
    found = []
    for name in ours[0]:
        first, second = ([v[name] for v in values] for values in (ours, theirs))
        about: About = "use" if name.endswith(_USE) else "leak"
        interval_at = partial(paired_difference, first, second)
        means = float(np.mean(first)), float(np.mean(second))
        found.append(Measured(name, about, *means, interval_at))
    return found


def _values(
    audit: StoredAudit, attacks: Sequence[str], utility: bool
) -> dict[str, float]:
    found = {}
    for name in attacks:
        leak = audit.leak(name)
        found[f"{name} AUROC"] = leak["auroc"]["value"]
        found[f"{name} success rate"] = leak["success_plain"]["value"]
    if utility:
        use = audit.contents["utility"]
        found[f"{use['metric']}{_USE}"] = use["local"]["value"]
    return found
