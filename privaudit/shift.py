"""How much of an attack's success is a difference of distributions, not membership.

Published audits of fine-tuned models often take their non-members from another data
set. Then whatever tells the data sets apart looks like a leak, also on a model that
never saw a member. So each such number stands beside that of the untuned model, and
beside the audit's own, whose non-members are dealt by a coin.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from privaudit.attack import Adversary, Attack, Target
from privaudit.auditor import Auditor, find_scenario
from privaudit.errors import ConfigError, UnknownNameError
from privaudit.population import records_elsewhere
from privaudit.runs import Run
from privaudit.seeds import Seeds
from privaudit.statistics.comparisons import Comparison, pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc
from privaudit.trainer import Rebuilt, Records
from privaudit.writing import UNTUNED, as_writer

Scored = list[Float[np.ndarray, " _"]]
Groups = tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"]]


@dataclass(frozen=True)
class Shift:
    """One attack against non-members from elsewhere.

    Attributes:
        attack: Its name.
        inside: AUROC against non-members from the members' own distribution.
        foreign: Against the foreign ones.
        untuned: The same, of the model before any training: all of it is shift.
        beyond: ``foreign`` less ``untuned``, on the same records.
    """

    attack: str
    inside: Estimate
    foreign: Estimate
    untuned: Estimate
    beyond: Comparison

    @property
    def sentence(self) -> str:
        """What may be said."""
        if _is_above(self.beyond.estimate, 0.0):
            return "membership shows beyond the distribution shift"
        if not _is_above(self.foreign, 0.5):
            return "nothing tells members from these foreign records"
        if _is_above(self.untuned, 0.5):
            return "distribution shift, not membership"
        return "undecided between distribution shift and membership"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for a JSON file."""
        estimates = {
            "inside": self.inside,
            "foreign": self.foreign,
            "untuned": self.untuned,
            "beyond": self.beyond.estimate,
        }
        return {
            "attack": self.attack,
            **{name: estimate.to_dict() for name, estimate in estimates.items()},
            "p_value": self.beyond.p_value,
            "sentence": self.sentence,
        }


def _is_above(estimate: Estimate, value: float) -> bool:
    return estimate.excludes(value) and estimate.value > value


def measure_shift(
    run: Run,
    dataset: str,
    *,
    data: str | None = None,
    scenario: str = "server-reconstruct",
    attacks: Sequence[str] = ("max-renyi", "token-loss"),
    most: int = 300,
    seed: int = 0,
) -> list[Shift]:
    """Attack a run of a model that writes with non-members from another data set.

    Each foreign record is used for one client only, so that clients stay independent.

    Args:
        run: Finished.
        dataset: Where non-members come from.
        data: Where it lies.
        scenario: Who looks on.
        attacks: Of the scenario's.
        most: Foreign records at most; 300 are published.
        seed: Draws foreign records, and deals them to clients.

    Raises:
        ConfigError: The run's models classify, or it cannot be attacked.
        UnknownNameError: No data set, or no attack of the scenario, has that name.
    """
    as_writer(run.trainer)
    auditor = Auditor(run)
    plan = find_scenario(scenario, 0).reading("words")
    unknown = [name for name in attacks if name not in plan.attacks]
    if unknown:
        raise UnknownNameError("attack", unknown[0], plan.attacks)
    adversary, targets = auditor.prepare(plan)
    members = [_members(run, target) for target in targets]
    targets, members = _with_members(targets, members)
    foreign = records_elsewhere(run.config, dataset, data)
    if min(len(foreign), most) < len(targets):
        raise ConfigError(
            f"{dataset} has {len(foreign)} records, of which {most} are taken at most, "
            f"and {len(targets)} clients need one each at least. Take more."
        )
    parts = _deal(len(foreign), most, len(targets), seed)
    strangers = [foreign.pick(torch.from_numpy(part)) for part in parts]
    tuned = [_about(targets, some) for some in (members, strangers)]
    # One model for all: what it says of records is kept by model and records.
    untuned = Rebuilt({UNTUNED: torch.zeros(())})
    plain = [[replace(target, rebuilt=untuned) for target in some] for some in tuned]
    found = []
    for name in attacks:
        ask = partial(_scores, plan.attacks[name], adversary)
        inside = _by_truth(run, targets, ask(targets))
        found.append(_shift(name, inside, *(list(map(ask, s)) for s in (tuned, plain))))
    return found


def _with_members(
    targets: Sequence[Target], members: Sequence[Records]
) -> tuple[list[Target], list[Records]]:
    """Leave out clients that no coin gave a member."""
    pairs = [(t, m) for t, m in zip(targets, members, strict=True) if len(m)]
    return [target for target, _ in pairs], [some for _, some in pairs]


def _members(run: Run, target: Target) -> Records:
    mine = run.population.indices(target.client)
    return target.candidates.pick(torch.from_numpy(run.ledger.is_member[mine]))


def _deal(
    records: int, most: int, clients: int, seed: int
) -> list[Int[np.ndarray, " _"]]:
    order = Seeds(seed).numpy("foreign records").permutation(records)[:most]
    return [np.sort(part) for part in np.array_split(order, clients)]


def _about(targets: Sequence[Target], records: Sequence[Records]) -> list[Target]:
    pairs = zip(targets, records, strict=True)
    return [replace(target, candidates=some) for target, some in pairs]


def _scores(attack: Attack, adversary: Adversary, targets: Sequence[Target]) -> Scored:
    return [score.scores.astype(float) for score in attack(adversary, targets)]


def _by_truth(run: Run, targets: Sequence[Target], scores: Scored) -> list[Groups]:
    """Return each client's members' and non-members' scores."""
    truths = [run.ledger.is_member[run.population.indices(t.client)] for t in targets]
    return [(s[t], s[~t]) for s, t in zip(scores, truths, strict=True)]


def _shift(
    name: str, inside: list[Groups], tuned: Sequence[Scored], plain: Sequence[Scored]
) -> Shift:
    """Compare members' with strangers' scores, after and before training."""
    after, before = (list(zip(*some, strict=True)) for some in (tuned, plain))
    pairs = [
        (np.concatenate(a), np.concatenate(b), np.repeat([True, False], [*map(len, a)]))
        for a, b in zip(after, before, strict=True)
    ]
    return Shift(
        name,
        pooled_auroc(inside),
        pooled_auroc(after),
        pooled_auroc(before),
        pooled_paired_auroc_difference(pairs),
    )
