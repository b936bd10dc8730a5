"""Metrics of two audited runs, or of two settings: on paired records, or over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from privaudit.auditing.attack_result import ClientScores
from privaudit.auditing.stored_audit import StoredAudit
from privaudit.core.errors import IncompatibleRunsError
from privaudit.evaluation.metric import Metric, PairedNumbers, Side, metrics_of
from privaudit.recording.bundle import ORIGIN
from privaudit.recording.origins.scores import ScoredRun
from privaudit.runs.ledger import Ledger
from privaudit.runs.run import Run
from privaudit.runs.utility import measure_tests
from privaudit.statistics.estimate import paired_difference
from privaudit.statistics.roc import leaks_over_seeds

_SPLIT_FIELDS = (  # what a split and its coins follow from
    "seed", "dataset", "data", "clients", "partition", "alpha", "shards", "sizes",
    "shots", "test_share", "public_share", "model", "checkpoint", "without",
)  # fmt: skip


_ALIKE = {
    False: "Train both with the same seed (--seed and some 18 random digits) and partition",
    True: "Record both by one ledger of `privaudit split`",
}
"""How two runs get the same members, by whether others train them."""


def check_pairable(first: Run, second: Run) -> None:
    """Raise unless the same clients own and trained on the same records.

    Raises:
        IncompatibleRunsError: The data sets, the splits or the membership coins differ.
    """
    names = f"{first.name} and {second.name}"
    for run in (first, second):
        refuse_unnamed(run)
    if first.header["data_hash"] != second.header["data_hash"]:
        raise IncompatibleRunsError(
            f"{names} were trained on other data ({first.config.dataset} and "
            f"{second.config.dataset}, by their hashes), so that no record can be "
            "compared with itself. Train both on one data set."
        )
    truth, other_truth = first.truth, second.truth
    if np.array_equal(truth.owner, other_truth.owner):
        if np.array_equal(truth.is_member, other_truth.is_member):
            return
        what = "split their records alike, but have other members"
    else:
        what = _other_split(truth, other_truth)
    raise IncompatibleRunsError(
        f"{names} {what} ({_unlike(first, second)}), so that records cannot be paired. "
        f"{_ALIKE[first.origin == ORIGIN]}; or give several runs of each setting, "
        "which are paired by seed."
    )


def _other_split(first: Ledger, second: Ledger) -> str:
    """Say how two splits of the same records differ."""
    if len(first.clients) != len(second.clients):
        return f"have {len(first.clients)} and {len(second.clients)} clients"
    if len(first.owner) != len(second.owner):
        return f"split {len(first.owner)} and {len(second.owner)} records"
    owned = first.owner >= 0
    shared = int(((first.owner == second.owner) & owned).sum())
    if shared == owned.sum() == (second.owner >= 0).sum():
        return "give their clients the same records, and keep others for tests"
    return (
        f"split their records differently: {shared} of {int(owned.sum())} candidates "
        "belong to the same client"
    )


def refuse_unnamed(run: Run) -> None:
    """Raise unless a run's records can be distinguished from others'.

    Raises:
        IncompatibleRunsError: They are of scores without names.
    """
    if isinstance(run, ScoredRun) and not run.has_names:
        how = "Give each a name (the column record), the same in both."
        if run.is_pool:
            how = (
                "Compare methods over seeds (`privaudit gate --method A --against B`)."
            )
        raise IncompatibleRunsError(
            f"The records of {run.name} have no names, so that no score can be compared "
            f"with another of the same record. {how}"
        )


def _unlike(first: Run, second: Run) -> str:
    configs = first.config.described(), second.config.described()
    said = unlike_settings(*configs, _SPLIT_FIELDS)
    if not said and first.config.seed is None:
        return OWN_COINS
    return "; ".join(said) or "with equal settings: another version?"


OWN_COINS = "without a seed each run tosses coins of its own"


def unlike_settings(
    first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str]
) -> list[str]:
    """Return by which of some settings two runs differ, in words."""
    return [
        f"{name} {first.get(name)} and {second.get(name)}"
        for name in names
        if first.get(name) != second.get(name)
    ]


def check_made_alike(
    first: StoredAudit, second: StoredAudit, attacks: Sequence[str]
) -> None:
    """Raise unless attacks had the same parameters, such as their shadow models.

    Raises:
        IncompatibleRunsError: One had others: it may find more because it is stronger.
    """
    for name in attacks:
        ours, theirs = (a.attack_result(name)["settings"] for a in (first, second))
        if ours != theirs:
            raise IncompatibleRunsError(
                f"{name} was made as {ours} on {first.run.name} and as {theirs} on "
                f"{second.run.name}, so that a difference would say nothing about the "
                "runs. Attack both alike: with the same --shadows N."
            )


def pair_clients(
    attack: str, first: Sequence[ClientScores], second: Sequence[ClientScores]
) -> tuple[list[ClientScores], list[ClientScores]]:
    """Return the clients that were attacked in both runs, in the first one's order.

    Raises:
        IncompatibleRunsError: There is none, or a client's records are not the same.
    """
    by_name = {client.client: client for client in second}
    ours = [client for client in first if client.client in by_name]
    theirs = [by_name[client.client] for client in ours]
    if not ours:
        raise IncompatibleRunsError(
            f"{attack} was made on {', '.join(c.client for c in first)} in one audit "
            f"and on {', '.join(by_name)} in the other: there is nothing to pair. Make "
            "the audits again with the same --clients."
        )
    for one, other in zip(ours, theirs, strict=True):
        same = np.array_equal(one.records, other.records)
        if not same or not np.array_equal(one.is_member, other.is_member):
            raise IncompatibleRunsError(
                f"{attack} scored {len(one.records)} candidates of "
                f"{one.client} in one audit and {len(other.records)} "
                "in the other, and they are not the same. Audit both runs again."
            )
    return ours, theirs


@dataclass(frozen=True)
class TestScores:
    """What the clients' models of a run score on its test records.

    Attributes:
        scores: Whether an answer is right, or how well it is written.
        own: The test records of each client's own classes and domains.
    """

    __test__ = False  # pytest would collect it

    metric: str
    scores: Float[np.ndarray, "clients tests"]
    own: Bool[np.ndarray, "clients tests"]


def score_tests(run: Run) -> TestScores:
    """Return how every client's model does on every test record."""
    population, models = run.population, run.personal_models
    own_mask = np.stack([population.own_records(client).numpy() for client in models])
    tests = measure_tests(run.trainer, population, list(models.values()))
    return TestScores(tests.metric, tests.scores, own_mask)


def pair_tests(first: Run, second: Run) -> tuple[TestScores, TestScores]:
    """Return both runs' scores on the same test records.

    Raises:
        IncompatibleRunsError: The runs measure other things, or on other records.
    """
    tests, others = score_tests(first), score_tests(second)
    if tests.metric != others.metric or tests.scores.shape != others.scores.shape:
        raise IncompatibleRunsError(
            f"{first.name} measures {tests.metric} on {tests.scores.shape[1]} test "
            f"records, and {second.name} {others.metric} on {others.scores.shape[1]}. "
            "Compare without utility."
        )
    return tests, others


def refuse_mixture(runs: Sequence[Run]) -> None:
    """Raise an IncompatibleRunsError unless the runs are alike in all but the seed."""
    settings = [{**run.config.model_dump(), "seed": None} for run in runs]
    for run, setting in zip(runs, settings, strict=True):
        unlike = [name for name in setting if setting[name] != settings[0][name]]
        if unlike:
            raise IncompatibleRunsError(
                f"{run.name} and {runs[0].name} differ in {', '.join(unlike)}, and "
                "replicates differ in their seed alone. Compare one setting with one."
            )


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
    if utility:
        found += measure_utility(*pair_tests(first.run, second.run))
    return found


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
        for metric in metrics_of("utility", codes)
    ]


def measure_seeds(
    audits: Sequence[tuple[StoredAudit, StoredAudit]],
    attacks: Sequence[str],
    utility: bool,
) -> list[Measured]:
    """Return every metric, with seeds as replicates; no record need be shared.

    The values are those that the audits stored, each on its own run's records.
    """
    values = [[_values(one, attacks, utility) for one in pair] for pair in audits]
    found = []
    for metric, of in values[0][0]:
        sides = (
            [one[metric, of] for one in side] for side in zip(*values, strict=True)
        )
        (first, turned), (second, other_turned) = (
            leaks_over_seeds(side) if metric.of_scores else (side, False)
            for side in sides
        )
        means = float(np.mean(first)), float(np.mean(second))
        interval_at = partial(paired_difference, first, second)
        numbers = PairedNumbers(*means, interval_at, (turned, other_turned))
        found.append(Measured(metric, of, numbers))
    return found


def _values(
    audit: StoredAudit, attacks: Sequence[str], utility: bool
) -> dict[tuple[Metric[Any], str], float]:
    values = {
        (m, name): m.stored(audit.attack_result(name), partial(audit.clients, name))
        for name in attacks
        for m in metrics_of("leak")
    }
    if utility:
        stored = audit.contents["utility"]
        for m in metrics_of("utility"):
            values[m, stored["metric"]] = m.stored(
                stored, partial(score_tests, audit.run)
            )
    return values
