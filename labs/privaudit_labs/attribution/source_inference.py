"""Source inference: what uploads tell about who trained on a record.

An adversary who knows that a record was trained on asks by whom. Where clients hold
different classes, the class alone says much, so the same guess is made of candidates
that nobody trained on: they come from the same shards, and what is right of those owes
nothing to training. The leak is the difference.

Source: Hu et al., "Source inference attacks in federated learning", ICDM 2021: the
client whose model has the smallest loss on the record. Here each model's loss is taken
relative to its median loss on public records of the class.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int

from privaudit.auditing.attack import Adversary, Target
from privaudit.auditing.parts.leakage_by_round import ByUnit, Truth
from privaudit.auditing.played_scenario import AuditPart
from privaudit.auditing.signals import class_medians, measure_signals
from privaudit.report.wording import interval, point, rate
from privaudit.statistics.estimate import Estimate, two_proportions
from privaudit.statistics.roc import success_rate
from privaudit.statistics.verdict import UNKNOWN_SAMPLING, Sampling, VerdictKind


@dataclass(frozen=True)
class SourceInference:
    """How often the right client is named.

    Attributes:
        members: Share of trained-on records whose client is named rightly.
        others: The same of candidates that nobody trained on.
        beyond: The difference: what training gives away of whose a record is.
        chance: One in so many clients.
        kind: What may be said, in the codes of verdicts on an AUROC.
    """

    members: Estimate
    others: Estimate
    beyond: Estimate
    chance: float
    kind: Literal["leaks", "no evidence", "sampling unknown"]


def infer_sources(
    adversary: Adversary,
    targets: Sequence[Target],
    truth: Truth,
    by_unit: ByUnit = lambda _, values: values,
    sampling: Sampling = "coin",
) -> SourceInference | None:
    """Name each candidate's client by the smallest loss, or each group's by the mean.

    None with fewer than two clients, or where all or none were trained on.
    """
    if len(targets) < 2:
        return None
    guesses = enumerate(_guesses(adversary, targets, by_unit))
    right = np.concatenate([guessed == own for own, guessed in guesses])
    member = np.concatenate([truth[target.client] for target in targets])
    if not member.any() or member.all():
        return None
    beyond = two_proportions(
        int(right[member].sum()),
        int(member.sum()),
        int(right[~member].sum()),
        int((~member).sum()),
    )
    found: Literal["leaks", "no evidence"] = "no evidence"
    if beyond.low > 0:
        found = "leaks"
    return SourceInference(
        _share(right[member]),
        _share(right[~member]),
        beyond,
        1 / len(targets),
        found if sampling != "unknown" else "sampling unknown",
    )


def _guesses(
    adversary: Adversary, targets: Sequence[Target], by_unit: ByUnit
) -> list[Int[np.ndarray, " _"]]:
    """Return which target's model likes each target's records best.

    Relative to public ones: a model that likes every record of a class better than
    others do is no evidence, so what its public records of the class get is taken off.
    """
    models = [other.reconstructed.model for other in targets]
    trainer, task = adversary.trainer, adversary.task
    public = measure_signals(trainer, task, models, task.public)
    others, guesses = public.labels.numpy(), []
    for target in targets:
        signals = measure_signals(trainer, task, models, target.candidates)
        labels = signals.labels.numpy()
        usual = [
            class_medians(r.numpy(), others, labels) for r in public.log_likelihood
        ]
        relative = signals.log_likelihood.numpy() - np.stack(usual)
        guesses.append(by_unit(target.client, relative).argmax(axis=0))
    return guesses


def _share(right: Bool[np.ndarray, " records"]) -> Estimate:
    return success_rate(np.ones(len(right), bool), right)


def sentences(inference: SourceInference | None, sampling: Sampling) -> list[str]:
    """Say how often the right client is named."""
    if inference is None:
        return []
    by_chance = sampling != "unknown"
    adds = "Training adds" if by_chance else "The difference is"
    return [
        f"The right client is guessed for {rate(inference.members)} of "
        f"{inference.members.n[0]} members, and for {rate(inference.others)} of "
        f"{inference.others.n[0]} candidates that no client trained on (by chance "
        f"{100 * inference.chance:.1f} %). {adds} "
        f"{point(inference.beyond, signed=True)} {interval(inference.beyond)}: "
        f"{_SOURCES[inference.kind]}."
    ]


_SOURCES: Mapping[VerdictKind, str] = {
    "leaks": "uploads tell whose a record is, beyond what its class tells",
    "no evidence": "no evidence that uploads tell whose a record is, beyond its class",
    "sampling unknown": f"no verdict. {UNKNOWN_SAMPLING.removesuffix('.')}",
}


SOURCE_INFERENCE = AuditPart(
    "source_inference",
    SourceInference | None,
    applies=lambda played: played.scenario.by_round,
    compute=lambda played: infer_sources(
        played.adversary,
        played.targets,
        played.truth,
        played.by_unit,
        played.run.sampling,
    ),
    nothing=None,
    title="Source inference",
    key="source",
    says=sentences,
)
