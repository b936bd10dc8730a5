"""What models without names told beyond the rest of a view, given the truth."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privaudit.auditing.attack import Target
from privaudit.auditing.attack_result import AttackResult, ClientScores
from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import ClientId
from privaudit.federated.transcript import Message
from privaudit.federated.weighted_mean import without_weight
from privaudit.statistics.comparisons import (
    Comparison,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, proportion


@dataclass(frozen=True)
class Linking:
    """What models without names told beyond what the adversary had anyhow.

    Attributes:
        attack: The headline attack, which AUROCs are of.
        alone: Its AUROC without those models.
        more: By attack, AUROC with linked models less that without, paired.
        right: Share of clients that were linked to a model of their own.
        chance: The same for a link by lot.
        suspects: How many models there were to choose from.
    """

    attack: str
    alone: Estimate
    more: Mapping[str, Comparison]
    right: Estimate
    chance: float
    suspects: int

    @property
    def headline(self) -> Comparison:
        """What the headline attack gained."""
        return self.more[self.attack]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for audit.json."""
        return {
            "attack": self.attack,
            "auroc_without": self.alone.to_dict(),
            "auroc_difference": {n: c.to_dict() for n, c in self.more.items()},
            "linked_right": self.right.to_dict(),
            "linked_right_by_chance": self.chance,
            "suspects": self.suspects,
        }


def measure_linking(
    messages: Iterable[Message],
    targets: Sequence[Target],
    linked: Mapping[str, AttackResult],
    alone: Mapping[str, AttackResult],
) -> Linking:
    """Return what linked models told, by truth that no attack has seen.

    Args:
        messages: All of the run's: uploads say whose the suspects are.
        targets: As attacked, with the linked model in place.
        linked: By attack, what it found with them.
        alone: The same for the same clients, as
            :func:`privaudit.auditing.parts.linkage.without_suspects` has them.
    """
    attack = next(iter(linked))
    right, by_chance = _right_links(messages, targets)
    return Linking(
        attack=attack,
        alone=alone[attack].auroc,
        more={
            name: _difference(leak.clients, alone[name].clients)
            for name, leak in linked.items()
        },
        right=proportion(sum(right), len(right)),
        chance=float(np.mean(by_chance)),
        suspects=max(len(target.reconstructed.suspects) for target in targets),
    )


def _difference(
    linked: Sequence[ClientScores], alone: Sequence[ClientScores]
) -> Comparison:
    return pooled_paired_auroc_difference(
        [
            (one.scores, other.scores, one.is_member)
            for one, other in zip(linked, alone, strict=True)
        ]
    )


def _right_links(
    messages: Iterable[Message], targets: Sequence[Target]
) -> tuple[list[bool], list[float]]:
    """Return whether each target got its own model, and the chance of that by lot."""
    uploads = [
        (message.sender, sent)
        for message in messages
        if message.is_update and (sent := without_weight(message.tensors))
    ]
    owners: dict[int, ClientId] = {}

    def owner(model: Tensors) -> ClientId:
        key = next(iter(model.values())).data_ptr()
        if key not in owners:
            gaps = [_gap(sent, model) for _, sent in uploads]
            owners[key] = uploads[int(np.argmin(gaps))][0]
        return owners[key]

    right, chance = [], []
    for target in targets:
        own = [owner(model) == target.client for model in target.reconstructed.suspects]
        right.append(owner(target.reconstructed.model) == target.client)
        chance.append(sum(own) / len(own))
    return right, chance


def _gap(sent: Tensors, model: Tensors) -> float:
    """Return how far a model is from what an upload holds of it."""
    return math.hypot(*(float((sent[n] - t).norm()) for n, t in model.items()))
