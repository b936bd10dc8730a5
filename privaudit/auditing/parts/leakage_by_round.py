"""Leakage by round: what single rounds, or all up to one, tell about members."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from privaudit.auditing.attack import Adversary, Attack, Target
from privaudit.auditing.played_scenario import AuditPart
from privaudit.federation.threat_models import View
from privaudit.federation.transcript import Message
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.roc import pooled_auroc

Uploads = Literal["of the round", "so far"]
_MEANINGS: Mapping[Uploads, str] = {
    "of the round": "this round's uploads alone",
    "so far": "clients as rebuilt from the uploads so far",
}

Truth = Mapping[str, np.ndarray]  # by client, which of its units are members
ByUnit = Callable[[str, np.ndarray], np.ndarray]
"""Returns the means of a client's values over records that share a coin."""
RoundScores = dict[int, Float[np.ndarray, " _"]]  # by round, scores


@dataclass(frozen=True)
class LeakageByRound:
    """What one attack learned from each round.

    Attributes:
        uploads: Which ones a round's figure is of.
        by_round: AUROC over the clients that sent something in the round.
    """

    attack: str
    uploads: Uploads
    by_round: Mapping[int, Estimate]

    @property
    def meaning(self) -> str:
        """What a round's figure is about, in words."""
        return _MEANINGS[self.uploads]

    @property
    def worst(self) -> int:
        """The round with the largest AUROC: the most of so many, and so no estimate."""
        return max(self.by_round, key=lambda index: self.by_round[index].value)


def leakage_by_round(
    attacks: Mapping[str, Attack],
    adversary: Adversary,
    targets: Sequence[Target],
    truth: Truth,
    by_unit: ByUnit = lambda _, values: values,
) -> tuple[LeakageByRound, ...]:
    """Return what rounds tell each attack that trains no shadows.

    An attack that looks at uploads says what each round tells by itself. Any other is
    made on the clients as they are rebuilt from all uploads so far.
    """
    leakages = []
    for name, attack in attacks.items():
        if attack.trains_shadows:
            continue
        scores = attack(adversary, targets)  # kept by those that look at uploads
        round_scores = [dict(score.by_round) for score in scores]
        uploads: Uploads = "of the round"
        if not any(round_scores):
            round_scores = _so_far(attack, adversary, targets)
            uploads = "so far"
        leakages.append(
            LeakageByRound(
                name, uploads, _by_round(targets, round_scores, truth, by_unit)
            )
        )
    return tuple(leakages)


def _so_far(
    attack: Attack, adversary: Adversary, targets: Sequence[Target]
) -> list[RoundScores]:
    """Return each target's scores after each round that it sent something in."""
    round_scores: list[RoundScores] = [{} for _ in targets]
    for index in sorted({m.round for t in targets for m in _uploads(adversary, t)}):
        seen = tuple(m for m in adversary.view.messages if m.round <= index)
        view = View(adversary.view.adversary, seen)
        cut = replace(adversary, view=view, store=None)  # models of a moment
        active = [
            number
            for number, target in enumerate(targets)
            if any(m.round == index for m in _uploads(adversary, target))
        ]
        fresh = [
            replace(one, reconstructed=cut.reconstruct(one.client))
            for one in (targets[number] for number in active)
        ]
        for number, score in zip(active, attack(cut, fresh), strict=True):
            round_scores[number][index] = score.scores
    return round_scores


def _uploads(adversary: Adversary, target: Target) -> Sequence[Message]:
    if not adversary.view.sees_updates_of(target.client):
        return ()
    return adversary.view.updates_of(target.client)


def _by_round(
    targets: Sequence[Target],
    round_scores: Sequence[RoundScores],
    truth: Truth,
    by_unit: ByUnit,
) -> dict[int, Estimate]:
    estimates = {}
    for index in sorted({index for scores in round_scores for index in scores}):
        counted = [
            (by_unit(t.client, scores[index]), truth[t.client])
            for t, scores in zip(targets, round_scores, strict=True)
            if index in scores
        ]
        groups = [(scores[member], scores[~member]) for scores, member in counted]
        if any(len(members) and len(others) for members, others in groups):
            estimates[index] = pooled_auroc(groups)
    return estimates


LEAKAGE_BY_ROUND: AuditPart[tuple[LeakageByRound, ...]] = AuditPart(
    "leakage_by_round",
    tuple[LeakageByRound, ...],
    applies=lambda played: played.scenario.by_round,
    compute=lambda played: leakage_by_round(
        played.scenario.attacks,
        played.adversary,
        played.targets,
        played.truth,
        played.by_unit,
    ),
    nothing=(),
    title="By round",
    key="rounds",
    order=4,
)
