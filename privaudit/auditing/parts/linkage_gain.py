"""Linkage gain: what models without names reveal beyond the rest of a view."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from privaudit.auditing.attack import Target
from privaudit.auditing.attack_result import AttackResult, paired_scores
from privaudit.auditing.linkage import without_suspects
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import ClientId
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import WEIGHT, without_weight
from privaudit.statistics.comparisons import (
    Comparison,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, proportion


@dataclass(frozen=True)
class LinkageGain:
    """What models without names reveal beyond what the adversary had anyhow.

    Attributes:
        attack: The headline attack, which AUROCs are of.
        auroc_without: Its AUROC without those models.
        auroc_difference: By attack, AUROC with linked models less that without, paired.
        linked_right: Share of clients that were linked to a model of their own.
        linked_right_by_chance: The same for a link by lot.
        suspects: How many models there were to choose from.
    """

    attack: str
    auroc_without: Estimate
    auroc_difference: Mapping[str, Comparison]
    linked_right: Estimate
    linked_right_by_chance: float
    suspects: int

    @property
    def headline(self) -> Comparison:
        """What the headline attack gained."""
        return self.auroc_difference[self.attack]


def measure_linkage_gain(
    messages: Iterable[Message],
    targets: Sequence[Target],
    linked: Mapping[str, AttackResult],
    alone: Mapping[str, AttackResult],
) -> LinkageGain:
    """Return what linked models revealed, by truth that no attack has seen.

    Of the same clients: what attacks found with the linked models, and without.
    """
    attack = next(iter(linked))
    right, by_chance = _right_links(messages, targets)
    return LinkageGain(
        attack=attack,
        auroc_without=alone[attack].auroc,
        auroc_difference={
            name: pooled_paired_auroc_difference(
                paired_scores(linked[name].clients, result.clients)
            )
            for name, result in alone.items()
        },
        linked_right=proportion(sum(right), len(right)),
        linked_right_by_chance=float(np.mean(by_chance)),
        suspects=max(len(target.reconstructed.suspects) for target in targets),
    )


def _right_links(
    messages: Iterable[Message], targets: Sequence[Target]
) -> tuple[list[bool], list[float]]:
    """Return whether each target got its own model, and the chance of that by lot."""
    uploads = [m for m in messages if m.is_update and m.tensors[WEIGHT] > 0]
    owners: dict[int, ClientId] = {}

    def owner(model: Tensors) -> ClientId:
        key = next(iter(model.values())).data_ptr()
        if key not in owners:
            gaps = [_gap(without_weight(m.tensors) or {}, model) for m in uploads]
            owners[key] = uploads[int(np.argmin(gaps))].sender
        return owners[key]

    right, chance = [], []
    for target in targets:
        is_own = [
            owner(model) == target.client for model in target.reconstructed.suspects
        ]
        right.append(owner(target.reconstructed.model) == target.client)
        chance.append(sum(is_own) / len(is_own))
    return right, chance


def _gap(sent: Tensors, model: Tensors) -> float:
    """Return how far a model is from what an upload holds of it."""
    return math.hypot(*(float((sent[n] - t).norm()) for n, t in model.items()))


def _measure(played: PlayedScenario) -> LinkageGain:
    alone = without_suspects(played.adversary, played.targets)
    others = played.attack(played.scenario, alone)
    transcript = played.run.transcript
    return measure_linkage_gain(transcript, played.targets, played.results, others)


LINKAGE_GAIN = AuditPart(
    "linkage_gain",
    LinkageGain | None,
    applies=lambda p: any(t.reconstructed.suspects for t in p.targets),
    compute=_measure,
    nothing=None,
    title="Linkage",
    key="linking",
    order=3,
)
