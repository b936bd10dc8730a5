"""The metrics in which two audited runs, or two settings, are compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from privaudit.auditing.attack_result import ClientScores, knowing_shadows_of
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
from privaudit.statistics.roc import pooled_auroc, sign_turned
from privaudit.statistics.verdict import judge_leak

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
        turned: Of first and second, whether its members have the lower scores: then
            its value, and the difference, are those of the scores with the sign turned.
    """

    name: str
    about: About
    first: float
    second: float
    interval_at: IntervalAt
    turned: tuple[bool, bool] = (False, False)


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
    first, first_turned = _leak_of([pair.first for pair in pairs])
    second, second_turned = _leak_of([pair.second for pair in pairs])
    signs = -1.0 if first_turned else 1.0, -1.0 if second_turned else 1.0
    at = paired_auroc_at(
        [
            (signs[0] * p.first.scores, signs[1] * p.second.scores, p.is_member)
            for p in pairs
        ],
        [pair.first.cluster for pair in pairs],
    )

    ours, theirs = [p.first for p in pairs], [p.second for p in pairs]
    knowing = knowing_shadows_of(ours, theirs, signs)

    def interval_at(confidence: float) -> Estimate:
        return knowing(at(confidence)).estimate

    turned = first_turned, second_turned
    return Measured(f"{name} AUROC", "leak", first, second, interval_at, turned)


def _leak_of(clients: Sequence[ClientScores]) -> tuple[float, bool]:
    """Return an AUROC, and whether it is that of the scores with the sign turned.

    Else a model whose members have the lower scores would pass for one that leaks less.
    """
    groups = [one.groups for one in clients]
    auroc = pooled_auroc(groups, clusters=[one.clusters for one in clients])
    turned = judge_leak(auroc).kind == "reversed"
    return (sign_turned(auroc) if turned else auroc).value, turned


def _success(name: str, pairs: Sequence[ClientPair]) -> Measured:
    first_correct, second_correct = (
        np.concatenate([getattr(p, who).guesses == p.is_member for p in pairs])
        for who in ("first", "second")
    )

    clusters = [pair.first.cluster for pair in pairs if pair.first.cluster is not None]
    alike = np.concatenate(clusters) if clusters else None

    def interval_at(confidence: float) -> Estimate:
        return paired_accuracy_difference(
            first_correct, second_correct, confidence, alike
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
