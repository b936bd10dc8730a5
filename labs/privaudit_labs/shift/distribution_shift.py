"""How much of an attack's success is a difference of distributions, not membership.

Published audits of fine-tuned models often take their non-members from another data
set. Then whatever tells the data sets apart looks like a leak, also on a model that
never saw a member. So each such number stands beside three others: the same attack on
the untuned model, an attacker that sees no model at all
(:mod:`privaudit_labs.shift.blind_baseline`), and the audit's own number, whose
non-members are drawn by a coin.

The untuned model is the one that the ``zero-shot`` trainer releases: a language model
without adapters, or CLIP with its hand-written prompt. It is the same for every trainer
and has no seed. A prompt learner's random first prompt would be neither: no base model
is used so, and its answers depend on the draw.

Tuning on *other* records of the members' distribution also moves an AUROC against
foreign non-members. So a gain over the untuned model is called membership only where
members stand out among records of their own distribution, too.
"""

from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from privaudit.auditing.attack import Adversary, Attack, Target
from privaudit.auditing.auditor import Auditor
from privaudit.auditing.scenario import Scenario, find_scenario, weight_attacks
from privaudit.core.errors import (
    AttackError,
    ConfigError,
    TooFewRecordsError,
    UnknownNameError,
)
from privaudit.core.seeds import Seeds
from privaudit.federation.trainer import TRAINERS, Records
from privaudit.models.interfaces import TaskKind
from privaudit.runs.ledger import CoinUnits
from privaudit.runs.run import Run
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.roc import pooled_auroc
from privaudit_labs.shift.blind_baseline import (
    Groups,
    Paired,
    beyond_blind,
    blind_scores,
    pooled_blind_auroc,
)
from privaudit_labs.shift.distribution_shift_verdict import Shift
from privaudit_labs.shift.foreign_records import records_elsewhere

USUAL_ATTACKS: Mapping[TaskKind, Sequence[str]] = {
    "classification": (),
    "generation": ("max-renyi", "token-loss"),
}
"""Made if nobody names any; without a name, all that train no shadow models."""
USUAL_FOREIGN: Mapping[TaskKind, str] = {
    "classification": "drawn-digits",
    "generation": "scenes-far",
}


def measure_shift(
    run: Run,
    dataset: str | None = None,
    *,
    data: str | None = None,
    scenario: str = "server-reconstruct",
    attacks: Sequence[str] | None = None,
    most: int = 300,
    seed: int = 0,
) -> list[Shift]:
    """Attack a run with non-members from another data set, with two controls.

    The controls are the untuned model and a blind baseline without any model. Each
    foreign record is used for one client only, so clients stay independent. Planted
    canaries are left out, members or not.

    Args:
        run: A finished run.
        dataset: Data set of the foreign non-members; by default ``drawn-digits`` for
            classification, and ``scenes-far`` for generation.
        data: Path of that data set.
        scenario: Name of the scenario.
        attacks: Names of the scenario's attacks, without those that train shadow
            models; by default all on classifiers, or two on generative models.
        most: Maximum number of foreign records.
        seed: Seed of the foreign records, their split among clients, and the folds of
            the blind baseline.

    Raises:
        ConfigError: The run cannot be attacked or was not trained here, the foreign
            data set is the run's own or has classes unknown to the model, or an attack
            does not query the model.
        UnknownNameError: No data set, or no attack of the scenario, has that name.
    """
    _refuse_trained_elsewhere(run)
    kind = run.population.task.kind
    plan = _plan(find_scenario(scenario, 0).for_task(kind), attacks, kind)
    adversary, all_targets = Auditor(run).prepare(plan)
    targets, members = _with_members(run, all_targets)
    named = dataset or usual_foreign(run)
    strangers = _strangers(run, named, data, len(targets), most, seed)
    blind = _blind(run, members, strangers, seed)
    base, untuned = _untuned(adversary, targets)
    shifts = []
    for name, attack in plan.attacks.items():
        _refuse_deaf(name, attack, adversary, targets[0])
        ask = partial(_against, attack, members, strangers)
        after, before = ask(adversary, targets), ask(base, untuned)
        inside = _inside(run, attack, adversary, targets)
        shifts.append(_shift(name, inside, after, before, blind))
    return shifts


def usual_foreign(run: Run) -> str:
    """Return the data set that foreign non-members are from if nobody names one.

    Raises:
        ConfigError: The run was not trained here, so its model reads no other records.
    """
    _refuse_trained_elsewhere(run)
    return USUAL_FOREIGN[run.population.task.kind]


def _refuse_trained_elsewhere(run: Run) -> None:
    if run.origin:
        raise ConfigError(
            f"{run.name} was trained elsewhere (origin: {run.origin}), and its model is "
            "asked by its owner about the ledger's records alone, so foreign records "
            "cannot be compared. Where no coin was tossed, `privaudit attack` makes the "
            "control before training itself."
        )


def _plan(plan: Scenario, attacks: Sequence[str] | None, kind: TaskKind) -> Scenario:
    """Return the scenario with those of its attacks that are to be made.

    About the clients' own records in any scenario: planted canaries are none of them, and
    differ from foreign records by how they were made.
    """
    usual = [n for n in USUAL_ATTACKS[kind] if n in plan.attacks]
    asking = [name for name in plan.attacks if name not in weight_attacks()]
    names = attacks or usual or asking  # an untuned model sends no weights
    unknown = [name for name in names if name not in plan.attacks]
    if unknown:
        raise UnknownNameError("attack", unknown[0], plan.attacks)
    chosen = {name: plan.attacks[name] for name in names}
    return replace(plan, attacks=chosen, one_run=False)


def _with_members(
    run: Run, targets: Sequence[Target]
) -> tuple[list[Target], list[Records]]:
    """Return the clients to which a coin gave a member, and those members.

    Of members that share a coin the first one alone: they are one trial, as a foreign
    record is, and a mean over them would differ from one foreign record by its spread.
    """
    units = [_units(run, target) for target in targets]
    pairs = [
        (target, target.candidates.pick(torch.from_numpy(one.first[truth])))
        for target, (one, truth) in zip(targets, units, strict=True)
        if truth.any()
    ]
    return [target for target, _ in pairs], [members for _, members in pairs]


def _units(run: Run, target: Target) -> tuple[CoinUnits, Bool[np.ndarray, " units"]]:
    """Return which candidates share a coin, and how each coin fell."""
    candidates = run.population.asked_about(target.client, canaries=False)
    units = run.ledger.units(candidates)
    return units, run.ledger.is_member[candidates[units.first]]


def _strangers(
    run: Run, dataset: str, data: str | None, clients: int, most: int, seed: int
) -> list[Records]:
    """Split foreign records among clients."""
    foreign = records_elsewhere(run.config, dataset, data)
    if min(len(foreign), most) < clients:
        raise TooFewRecordsError(
            f"{dataset} has {len(foreign)} records, of which {most} are taken at most, "
            f"and {clients} clients need one each at least. Use more."
        )
    parts = _split(len(foreign), most, clients, seed)
    return [foreign.pick(torch.from_numpy(part)) for part in parts]


def _split(
    records: int, most: int, clients: int, seed: int
) -> list[Int[np.ndarray, " _"]]:
    order = Seeds(seed).stream("foreign records").permutation(records)[:most]
    return [np.sort(part) for part in np.array_split(order, clients)]


def _blind(
    run: Run, members: Sequence[Records], strangers: Sequence[Records], seed: int
) -> list[Groups]:
    """Return each client's blind scores: one attacker learns on all clients'."""
    parts = [*members, *strangers]
    seen = [torch.cat([part.features for part in parts]).double().numpy()]
    dialogues = [one for part in parts for one in part.dialogues]
    texts = [f"{d.question} {d.answers[0]}" for d in dialogues]
    if not texts:
        classes = len(run.population.dataset.class_names)
        seen.append(np.eye(classes)[torch.cat([p.labels for p in parts]).numpy()])
    sizes = [len(part) for part in parts]
    truth = np.repeat([True, False], [sum(map(len, members)), sum(map(len, strangers))])
    clients = np.repeat([*range(len(members)), *range(len(strangers))], sizes)
    scores = blind_scores(np.concatenate(seen, axis=1), truth, seed, texts, clients)
    split = np.split(scores, np.cumsum(sizes)[:-1])
    return list(zip(split[: len(members)], split[len(members) :], strict=True))


def _untuned(
    adversary: Adversary, targets: Sequence[Target]
) -> tuple[Adversary, list[Target]]:
    """Return who asks the model as it comes, with that in place of each target's.

    One model for all: what it says of public records is then asked once.
    """
    untuned = replace(adversary, trainer=TRAINERS.find("zero-shot")(), store=None)
    reconstructed = untuned.reconstruct(targets[0].client)
    return untuned, [replace(one, reconstructed=reconstructed) for one in targets]


def _against(
    attack: Attack,
    members: Sequence[Records],
    strangers: Sequence[Records],
    adversary: Adversary,
    targets: Sequence[Target],
) -> list[Groups]:
    """Return each client's scores of members, and of foreign records."""
    known, foreign = (
        attack(adversary, [*map(_about, targets, records)])
        for records in (members, strangers)
    )
    return [
        (m.scores.astype(float), f.scores.astype(float))
        for m, f in zip(known, foreign, strict=True)
    ]


def _about(target: Target, records: Records) -> Target:
    return replace(target, candidates=records)


def _inside(
    run: Run, attack: Attack, adversary: Adversary, targets: Sequence[Target]
) -> list[Groups]:
    """Return each client's scores of members, and of non-members by the coin.

    As the audit's own, they are means over records that share a coin.
    """
    groups = []
    for target, found in zip(targets, attack(adversary, targets), strict=True):
        units, truth = _units(run, target)
        scores = units.mean(found.scores.astype(float))
        groups.append((scores[truth], scores[~truth]))
    return groups


class _Watched(UserDict[str, Tensor]):
    """A model that knows whether anybody looked into it."""

    was_read = False

    def __getitem__(self, name: str) -> Tensor:
        self.was_read = True
        return self.data[name]


def _refuse_deaf(
    name: str, attack: Attack, adversary: Adversary, target: Target
) -> None:
    """Refuse an attack that does not look at its target's model, on a few records."""
    watched = _Watched(target.reconstructed.model)
    few = replace(
        target,
        reconstructed=replace(target.reconstructed, model=watched),
        candidates=target.candidates.pick(torch.arange(min(4, len(target.candidates)))),
    )
    public = adversary.task.public.pick(
        torch.arange(min(16, len(adversary.task.public)))
    )
    watched.was_read = False  # checks of types may have looked
    attack(replace(adversary, task=replace(adversary.task, public=public)), [few])
    if not watched.was_read:
        raise AttackError(
            f"{name} does not query its target's model, so it scores an untuned one "
            "alike, and cannot distinguish shift from membership. Name attacks that "
            "query it, such as loss-threshold."
        )


def _shift(
    name: str,
    inside: list[Groups],
    after: list[Groups],
    before: list[Groups],
    blind: list[Groups],
) -> Shift:
    """Compare members' with strangers' scores: tuned, untuned and blind."""
    return Shift(
        name,
        pooled_auroc(inside),
        pooled_auroc(after),
        pooled_auroc(before),
        pooled_paired_auroc_difference(_paired(after, before)),
        pooled_blind_auroc(blind),
        beyond_blind(_paired(after, blind)),
    )


def _paired(first: Sequence[Groups], second: Sequence[Groups]) -> list[Paired]:
    """Return both attacks' scores of each client's records, and the truth."""
    return [
        (np.concatenate(a), np.concatenate(b), np.repeat([True, False], [*map(len, a)]))
        for a, b in zip(first, second, strict=True)
    ]
