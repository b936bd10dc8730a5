"""Linkage gain: what models without names reveal beyond the rest of a view."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.attack_result import AttackResult, paired_scores
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import ClientId
from privaudit.federation.transcript import Message
from privaudit.federation.uploads import WEIGHT, without_weight
from privaudit.report.wording import interval, point, rate
from privaudit.statistics.comparisons import (
    Comparison,
    pooled_paired_auroc_difference,
)
from privaudit.statistics.estimate import Estimate, proportion
from privaudit.statistics.verdict import Sampling


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


def without_suspects(adversary: Adversary, targets: Sequence[Target]) -> list[Target]:
    """Return linked targets as they would be had no suspect been seen, and no others.

    ``reconstruct`` gives what is best without suspects; the attack on it is the yardstick.
    """
    plain = []
    for target in targets:
        if target.reconstructed.suspects:
            reconstructed = adversary.reconstruct(target.client)
            plain.append(
                replace(target, reconstructed=replace(reconstructed, suspects=()))
            )
    return plain


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


def sentences(links: LinkageGain | None, sampling: Sampling) -> list[str]:
    """State what anonymous prompts reveal beyond the average."""
    if links is None:
        return []
    gain = links.headline.estimate
    if not gain.excludes(0):
        learned = "no clear difference from"
    else:
        learned = "more than" if gain.value > 0 else "less than"
    learned += " what a PromptFL client learns"
    if sampling == "unknown":
        learned = "of which no leak is said, as no coin is declared"
    return [
        "A PromptFL client receives only the average, on which "
        f"“{links.attack}” has an AUROC of {point(links.auroc_without)} "
        f"{interval(links.auroc_without)}. This one also received {links.suspects} "
        "anonymous prompts; using the likeliest one for each client changes the AUROC "
        f"by {point(gain, signed=True)} {interval(gain)}: {learned}. "
        "The prompt was linked to the right client in "
        f"{rate(links.linked_right)} of {sum(links.linked_right.n)} cases (by chance "
        f"{100 * links.linked_right_by_chance:.1f} %)."
    ]


LINKAGE_GAIN = AuditPart(
    "linkage_gain",
    LinkageGain | None,
    applies=lambda p: any(t.reconstructed.suspects for t in p.targets),
    compute=_measure,
    nothing=None,
    title="Linkage",
    key="linking",
    says=sentences,
)
