"""Removal of the most exposed records: what training without them wins, and who pays.

Whose records are left out is safe. But the others lean on them: where outliers are
gone, others become outliers (the onion effect). So those that stay are compared with
themselves: in the run as it was, in one without the most exposed, and in one without as
many at random, since less data alone exposes more.

Which records go is chosen by one audit, and what all three lose is measured by fresh
ones, of another adversary's seed: else those that stay would seem safe by the noise by
which they were not chosen.

Source: Carlini et al., "The privacy onion effect: memorization is relative", NeurIPS
2022. They retrain many models and rank by LiRA; here the ranks are of the privacy loss
(:mod:`privaudit.auditing.parts.record_exposure`), and one model is attacked each time.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.auditing.attack_result import (
    ClientScores,
    knowing_shadows_of,
    leak_auroc,
    paired_scores,
)
from privaudit.auditing.audit import Audit
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.parts.record_exposure import RECORD_EXPOSURE, ExposedRecords
from privaudit.auditing.stored_audit import read_audit, restore_audit, save_audit
from privaudit.core.errors import ConfigError, PrivauditError
from privaudit.core.parameters import fraction
from privaudit.core.seeds import Seeds
from privaudit.datasets.split import write_positions
from privaudit.runs.run import Run, mark_latest
from privaudit.runs.training import train
from privaudit.statistics.comparisons import (
    Comparison,
    paired_accuracy_difference,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import (
    Estimate,
    mean_with_t,
    paired_difference,
    proportion,
)
from privaudit.statistics.progress import Watcher

FEWEST_GONE = 2
THESE_ALONE = (
    "Every interval is for these three trainings alone: the randomness of training has no "
    "part in it, nor has which records the random removal drew, so that a claim about "
    "removal takes several seeds: name several runs"
)


@dataclass(frozen=True)
class Kept:
    """What the records that stay lose in one run: intervals know of no other training.

    Attributes:
        auroc: Of the headline attack, on them alone.
        loss: Their mean privacy loss, in deviations.
        as_exposed: The share of them whose loss is at least the least one of the
            records that were chosen to go.
    """

    run: str
    auroc: Estimate
    loss: Estimate
    as_exposed: Estimate


@dataclass(frozen=True)
class Paired:
    """What differs between two runs, on the same records.

    Intervals are over records, for these two trainings alone: two of one setting differ,
    too, and no interval here has a part for that.

    Attributes:
        auroc: Of the headline attack; its interval knows of the adversary's own coins.
        loss: Mean difference of the privacy loss.
        as_exposed: Difference of shares, with McNemar's p-value.
    """

    auroc: Comparison
    loss: Estimate
    as_exposed: Comparison


@dataclass(frozen=True)
class Removal:
    """What came of training without some records.

    Attributes:
        scenario: Name of the scenario: who looks on, and what is tried.
        attack: The headline attack.
        share: Of each attacked client's candidates that went, at most.
        threshold: The least privacy loss among them, when they were chosen.
        everyone: The headline's AUROC in the run as it was, on all candidates.
        before: What the others lose in the run as it was.
        without_exposed: In the run without the most exposed.
        without_random: In the run without as many others.
        exposed_effect: Without the most exposed, less before: below 0 is a gain.
        random_effect: Without as many at random, less before.
        onion: Without the most exposed, less without as many at random: above 0, those
            who stay pay for those who went.
        intervals: What they hold for.
    """

    scenario: str
    attack: str
    share: float
    gone: int
    threshold: float
    everyone: Estimate
    before: Kept
    without_exposed: Kept
    without_random: Kept
    exposed_effect: Paired
    random_effect: Paired
    onion: Paired
    intervals: str = THESE_ALONE


@dataclass(frozen=True)
class _Measured:
    """One audit, on the records that stay."""

    run: str
    clients: Sequence[ClientScores]
    losses: Float[np.ndarray, " kept"]


def retrain_without(
    run: Run,
    scenario: str = "server-reconstruct",
    *,
    share: float = 0.1,
    seed: int = 1,
    folder: str | Path | None = None,
    watcher: Watcher | None = None,
) -> Removal:
    """Train a run again without its most exposed records, and compare who stays.

    Two runs are made, or taken if they are there, and audits of all three saved: each
    is trained as the run was, and says which records it does without.

    Args:
        run: Audited under the scenario, with shadow models that train on candidates.
        scenario: Name of the scenario whose attacks are made.
        share: Of each attacked client's candidates, in (0, 0.5].
        seed: Of the adversary who measures; another one than that of the audit, which
            chose.
        folder: Of the new runs; by default that of all runs.
        watcher: Receives what is done next.

    Raises:
        ConfigError: The run was trained elsewhere, its audit has no privacy losses or
            the same seed or attacks that cannot be made again, or too few records would
            go. Nothing is trained then.
        MissingFileError: The run was not audited under the scenario.
    """
    fraction("share", share)
    chosen_by = restore_audit(read_audit(run, scenario))
    records = _exposed_records(chosen_by, share, seed)
    attacks, shadows = _attacks_again(chosen_by)
    gone, others = _choose(records, share, Seeds(chosen_by.seed))
    settings, fields = _as_before(run)
    runs = [run]
    for positions in (gone, others):
        without = {**fields, "without": write_positions(positions)}
        again = train(
            run.config.trainer, folder=folder, settings=settings, watcher=watcher,
            resume=True, coins=run if run.config.seed is None else None, **without,
        )  # fmt: skip
        mark_latest([run])  # nobody asked for those that lack records
        runs.append(again)
    audits = []
    clients = _shadowed(chosen_by)
    for one in runs:
        audit = Auditor(one).attack(
            scenario, attacks=attacks, clients=clients, shadows=shadows, seed=seed,
            watcher=watcher,
        )  # fmt: skip
        audits.append(audit)
        if one is not run:  # the audit that chose stays as it is
            save_audit(audit)
    exposures = [_records_of(audit) for audit in audits]
    stay = np.setdiff1d(exposures[0].record, np.union1d(gone, others))
    for other in exposures[1:]:  # a client with few candidates left is not ranked
        stay = np.intersect1d(stay, other.record)
    found = [_measure(*pair, stay) for pair in zip(audits, exposures, strict=True)]
    least = float(records.losses[np.isin(records.record, gone)].min())
    return _compare(found, audits[0], share, len(gone), least)


def _exposed_records(audit: Audit, share: float, seed: int) -> ExposedRecords:
    """Return the records that an audit ranked."""
    run, name = audit.run, audit.scenario.name
    again = f"`privaudit attack {run.name} --scenario {name} --shadows 32`"
    found = audit.part(RECORD_EXPOSURE)
    if run.origin:
        raise ConfigError(
            f"{run.name} was to be trained again, and was trained elsewhere. Leave "
            "records out there, and record it again."
        )
    if found is None or found.loss is None:
        raise ConfigError(
            f"The audit of {run.name} under {name} has no privacy losses of records: "
            f"they take shadow models that train on candidates. Make it with {again}."
        )
    if audit.seed == seed:
        raise ConfigError(
            f"The audit of {run.name} that chooses has the seed {seed}, and so has the "
            "one that measures: who stays would seem safe by its noise. Use another "
            "--seed."
        )
    if share > 0.5:
        raise ConfigError(
            f"A share of {share:g} was to be left out, and as many others at random: "
            "that leaves nobody. Use at most 0.5."
        )
    return found.records


def _attacks_again(audit: Audit) -> tuple[list[str], int]:
    """Return which attacks an audit had besides its scenario's, and how many shadows."""
    made = {
        name: result.settings
        for name, result in audit.results.items()
        if " as " not in name  # a weaker adversary's, made again with its scenario
    }
    auditor, scenario = Auditor(audit.run), audit.scenario.name
    known = audit.scenario.attacks.values()
    for shadows in sorted({0} | {getattr(one, "shadows", 0) for one in known}):
        own = auditor.plan(scenario, (), shadows).attacks
        besides = [name for name in made if name not in own]
        with suppress(PrivauditError):
            again = auditor.plan(scenario, besides, shadows).attacks
            if {name: repr(one) for name, one in again.items()} == made:
                return besides, shadows
    raise ConfigError(
        f"The audit of {audit.run.name} under {scenario} has attacks that cannot be made "
        f"again as they were: {', '.join(made)}. Make it again with `privaudit attack "
        f"{audit.run.name} --scenario {scenario} --shadows 32`."
    )


def _shadowed(audit: Audit) -> int:
    """Return how many clients shadow models were trained for."""
    return min(
        len(audit.results[name].clients)
        for name, attack in audit.scenario.attacks.items()
        if attack.trains_shadows
    )


def _choose(
    records: ExposedRecords, share: float, seeds: Seeds
) -> tuple[Int[np.ndarray, " gone"], Int[np.ndarray, " others"]]:
    """Return the positions that go, and as many of each client at random."""
    client, position = np.array(records.client), np.array(records.record)
    loss, gone, others = records.losses, list[int](), list[int]()
    for name in dict.fromkeys(records.client):
        own = np.flatnonzero((client == name) & np.isfinite(loss))
        ordered = own[np.argsort(-loss[own], kind="stable")]
        count = int(share * len(own))
        gone += position[ordered[:count]].tolist()
        rest = np.sort(ordered[count:])
        drawn = seeds.stream("left out", client=name).permutation(len(rest))[:count]
        others += position[rest[drawn]].tolist()
    if len(gone) < FEWEST_GONE:
        raise ConfigError(
            f"A share of {share:g} of each client's candidates leaves out {len(gone)} of "
            f"{len(position)} records, and {FEWEST_GONE} are needed. Use a larger one."
        )
    return np.array(gone), np.array(others)


def _as_before(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a run's parameters and fields, to train it again."""
    fields = run.config.model_dump()
    fields.pop("trainer")
    if fields.pop("without") is not None:
        raise ConfigError(
            f"{run.name} does without records already. Take the run that it was made of, "
            "and leave out a larger share."
        )
    return fields.pop("settings"), fields


def _records_of(audit: Audit) -> ExposedRecords:
    part = audit.part(RECORD_EXPOSURE)
    if part is None or part.loss is None:
        raise ConfigError(
            f"{audit.run.name} has too few candidates for a rank of each. Leave out a "
            "smaller share."
        )
    return part.records


def _measure(
    audit: Audit, records: ExposedRecords, stay: Int[np.ndarray, " stay"]
) -> _Measured:
    """Return what an audit found of the records that all three runs have, in order."""
    position = np.array(records.record)
    order = np.argsort(position)
    order = order[np.isin(position[order], stay)]
    clients = [_of(one, stay) for one in audit.headline.clients]
    clients = [one for one in clients if len(one.records)]
    return _Measured(audit.run.name, clients, records.losses[order])


def _of(client: ClientScores, stay: Int[np.ndarray, " stay"]) -> ClientScores:
    kept: Bool[np.ndarray, " candidates"] = np.isin(client.records, stay)
    names = ("records", "labels", "scores", "guesses", "is_member")
    columns: Mapping[str, Any] = {name: getattr(client, name)[kept] for name in names}
    left_out = None if client.left_out is None else client.left_out[:, kept]
    cluster = None if client.cluster is None else client.cluster[kept]
    return replace(client, **columns, left_out=left_out, cluster=cluster)


def _compare(
    found: Sequence[_Measured],
    audit: Audit,
    share: float,
    gone: int,
    threshold: float,
) -> Removal:
    before, exposed, random = found
    kept = [_kept(one, threshold) for one in found]
    return Removal(
        scenario=audit.scenario.name,
        attack=audit.headline.attack,
        share=share,
        gone=gone,
        threshold=threshold,
        everyone=audit.auroc,
        before=kept[0],
        without_exposed=kept[1],
        without_random=kept[2],
        exposed_effect=_paired(exposed, before, threshold),
        random_effect=_paired(random, before, threshold),
        onion=_paired(exposed, random, threshold),
    )


def _kept(one: _Measured, threshold: float) -> Kept:
    reaches = one.losses >= threshold
    return Kept(
        one.run,
        leak_auroc(one.clients),
        mean_with_t(one.losses),
        proportion(int(reaches.sum()), len(reaches)),
    )


def _paired(first: _Measured, second: _Measured, threshold: float) -> Paired:
    groups = paired_scores(first.clients, second.clients)
    reach = first.losses >= threshold, second.losses >= threshold
    return Paired(
        knowing_shadows_of(first.clients, second.clients)(
            pooled_paired_auroc_difference(groups)
        ),
        paired_difference(first.losses, second.losses),
        paired_accuracy_difference(*reach),
    )
