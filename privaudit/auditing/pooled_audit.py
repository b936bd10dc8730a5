"""Audits of several trainings as one: strata are the clients of each training.

One training has too few records to decide on a small leak, and no statistic of its scores
makes up for that: further trainings with coins of their own do.

Source: records in several trainings: Obuchowski, Biometrics 53, 1997, whose clusters they
are; looks until a verdict: Pocock, "Group sequential methods in the design and analysis of
clinical trials", Biometrika 64, 1977.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privaudit.auditing.attack_result import ClientScores, evaluate_scores, with_audits
from privaudit.auditing.audit import Audit
from privaudit.auditing.audit_log import differences, tally_of
from privaudit.auditing.parts.pool import POOL, Pool
from privaudit.auditing.scenario import OF_SCORES
from privaudit.core.errors import ConfigError, IncompatibleRunsError
from privaudit.recording.origins.scores import ScoredConfig, ScoredRun
from privaudit.runs.ledger import Coin, Ledger
from privaudit.runs.run import Run
from privaudit.runs.utility import Utility
from privaudit.statistics.estimate import Estimate, mean_with_t, needs, unresolved
from privaudit.statistics.verdict import ASSIGNED, LOOKS, Pooled

_FEWEST = 3  # trainings, from which on they are replicates of a method
_MOST = 100  # trainings
_ALIKE = 6.0  # standard errors of a correlation between coins, which chance never gives
_FEW = 20  # coins, of which all may agree by chance
_LONGEST = 56  # characters of a client's name beside the number of its training


def pool_name(runs: Sequence[Run], *, is_sequential: bool = False) -> str:
    """Return what the logs of its runs call a pool: each other pool is another audit.

    Of looks ``runs`` are those that were named, as further ones follow from the first.
    """
    text = "\n".join(sorted(run.header["ledger_hash"] for run in runs))
    what = "until decided, from" if is_sequential else "pool"
    return f"{what} {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def refuse_pool(runs: Sequence[Run], *, is_sequential: bool = False) -> None:
    """Refuse runs that are no trainings of one method, each with coins of its own.

    Raises:
        ConfigError: There are too few, where no looks are planned, too many, or scores.
        IncompatibleRunsError: Settings or data differ, coins are shared, or none or no
            random split chose the members.
    """
    least, most = (1, LOOKS) if is_sequential else (2, _MOST)
    if not least <= len(runs) <= most:
        raise ConfigError(
            f"A pool of {len(runs)} trainings was asked for, and it takes {least} to {most} "
            "of one method (`privaudit train --trainings 4`). Choose them whatever they say."
        )
    for run in runs:
        if isinstance(run, ScoredRun):
            raise ConfigError(
                f"{run.name} holds scores, which belong to no training that is pooled. Put "
                "the scores of all trainings into one table, with clients named by training."
            )
        if run.sampling not in ASSIGNED or run.config.members == "clients":
            raise IncompatibleRunsError(
                f"{run.name} was to be pooled, and no coin or random split chose its member "
                "records. Pool runs in which one did."
            )
    first, *others = runs
    for run in others:
        if unlike := differences(_kind(first), _kind(run)):
            raise IncompatibleRunsError(
                f"{run.name} and {first.name} are no trainings of one method: "
                f"{'; '.join(unlike)}. Pool runs that differ in their seed alone "
                "(`privaudit train --trainings 4`)."
            )
    for one, other in itertools.combinations(runs, 2):
        _refuse_shared_coins(one, other)


def _kind(run: Run) -> dict[str, object]:
    own = {**run.config.identity, "seed": None}
    header = run.header
    return {**own, "data": header["data_hash"], "weights": header["model_hash"]}


def _refuse_shared_coins(one: Run, other: Run) -> None:
    """Refuse coins of one seed, and such as agree, or disagree, more than chance does."""
    seed, why = one.coin_seed, ""
    if seed is not None and seed == other.coin_seed:
        why = f"follow from the seed {seed} in both"
    both = np.flatnonzero((one.truth.owner >= 0) & (other.truth.owner >= 0))
    rows = both[one.truth.units(both).first]
    ours, theirs = one.truth.is_member[rows], other.truth.is_member[rows]
    if not why and len(rows) > _FEW and len({*ours}) == len({*theirs}) == 2:
        alike = abs(float(np.corrcoef(ours, theirs)[0, 1]))
        if alike > 1 - 1e-9 or alike * len(rows) ** 0.5 > _ALIKE:
            why = f"of {len(rows)} records have a correlation of {alike:.2f}"
    if why:
        raise IncompatibleRunsError(
            f"The coins of {one.name} and {other.name} {why}, and a pool takes fresh ones in "
            "each training. Train with another seed, or without one."
        )


def pool_audits(
    audits: Sequence[Audit],
    named: Iterable[str] = (),
    seconds: float = 0.0,
    *,
    looks: str = "",
) -> Audit:
    """Return one audit of trainings that were attacked alike, in memory.

    Args:
        audits: Of one scenario, logged under :func:`pool_name`.
        named: Attacks that are pooled beside the headline, as they were asked for.
        seconds: What a training and its attack took; 0 where nobody knows.
        looks: What logs call the planned looks that this is one of; empty if of none.

    Raises:
        IncompatibleRunsError: Attacks differ; and as :func:`refuse_pool`.
    """
    runs, first = [audit.run for audit in audits], audits[0]
    refuse_pool(runs, is_sequential=bool(looks))
    headline, asked = first.headline.attack, {one.partition(":")[0] for one in named}
    name = looks or pool_name(runs)
    each = [audit.results[headline].auroc for audit in audits]
    counts = [
        tally_of(run, headline, auroc, name).different
        for run, auroc in zip(runs, each, strict=True)
    ]
    run, results = _run(audits, _stacked(audits, headline)), {}
    for label in first.results:
        if label == headline or label.partition(":")[0] in asked:
            tries = max(counts) if label == headline else 1
            one = first.results[label]
            result = evaluate_scores(
                label, one.settings, one.threshold, _stacked(audits, label),
                one.package, run.sampling, one.verdict.limits,
            )  # fmt: skip
            pooled = Pooled(len(audits), bool(looks))
            results[label] = with_audits(result, run.sampling, tries, pooled)
    part = Pool(
        tuple(run.name for run in runs),
        tuple(run.header["ledger_hash"] for run in runs),
        tuple(each),
        of_method(results[headline].auroc, [auroc.value for auroc in each]),
        seconds,
        bool(looks),
    )
    return Audit(
        run=run,
        scenario=replace(first.scenario, name=OF_SCORES.name),
        results=results,
        utility=_utility([audit.utility for audit in audits]),
        seed=first.seed,
        budget=first.budget,
        computed=first.computed,
        parts={POOL.name: part},
    )


def _stacked(audits: Sequence[Audit], attack: str) -> list[ClientScores]:
    """Return the clients of all trainings; a record that is in several is a cluster."""
    found, first = [], audits[0].results[attack]
    for number, audit in enumerate(audits, start=1):
        made = audit.results.get(attack)
        if made is None or made.settings != first.settings:
            raise IncompatibleRunsError(
                f"{attack} was {made and made.settings} on {audit.run.name} and "
                f"{first.settings} on {audits[0].run.name}. Give --shadows in place of a "
                "budget, and pool runs that release the same."
            )
        for place, client in enumerate(made.clients):
            is_short = len(client.client) <= _LONGEST
            name = client.client if is_short else f"client-{place}"
            found.append(replace(client, client=f"{number}.{name}"))
    sizes = [len(client.records) for client in found]
    records = np.concatenate([client.records for client in found])
    _, places, number_of = np.unique(records, return_index=True, return_inverse=True)
    parts = np.split(np.arange(len(records)), np.cumsum(sizes)[:-1])
    return [
        replace(client, records=rows, cluster=places[number_of[rows]])
        for client, rows in zip(found, parts, strict=True)
    ]


def _run(audits: Sequence[Audit], clients: Sequence[ClientScores]) -> ScoredRun:
    """Return the run in memory that holds a pool: what is proved is of one training."""
    run = audits[0].run
    ledger = Ledger(
        np.repeat(np.arange(len(clients)), [len(c.records) for c in clients]),
        np.concatenate([client.is_member for client in clients]),
        tuple(client.client for client in clients),
        coin=None if run.sampling == "coin" else Coin("split"),
        cluster=np.concatenate([client.cluster for client in clients]),
    )
    named = ("trainer", "settings", "model", "dataset")
    declared = ScoredConfig(
        **{name: getattr(run.config, name) for name in named},
        clients=len(clients),
        sampling=ledger.sampling,
    )
    classes, name = list(run.class_names), f"{run.name}-pool"
    return ScoredRun.of(name, ledger, declared, classes, "", run.privacy)


def of_method(these: Estimate, values: Sequence[float]) -> Estimate:
    """Return the AUROC for other trainings, at least as wide as for these."""
    count, how = len(values), "Student over trainings"
    if count < _FEWEST or these.unresolved:
        reason = needs(_FEWEST, "trainings", count)
        return unresolved(reason, (count,), how, these.confidence, these.value)
    over = mean_with_t(values, these.confidence)
    low = min(these.low, max(these.value - (over.value - over.low), 0.0))
    high = max(these.high, min(these.value + (over.high - over.value), 1.0))
    return Estimate(these.value, low, high, (count,), how, these.confidence)


def _utility(found: Sequence[Utility | None]) -> Utility | None:
    """Return the mean over trainings; None where one was not measured."""
    known = [one for one in found if one is not None]
    if len(found) == 1 or len(known) < len(found):
        return found[0] if len(found) == 1 else None

    def mean(name: str) -> Estimate | None:
        values = [one.value for u in known if (one := getattr(u, name)) is not None]
        return mean_with_t(values) if len(values) == len(known) else None

    names = ("local", "neighbour", "mix", "gain", "zero_shot")
    means: dict[str, Any] = {name: mean(name) for name in names}
    return Utility(**means, metric=known[0].metric)
