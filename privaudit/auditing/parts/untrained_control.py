"""Untrained control, where no coin chose the members: the attack before any training.

Members and non-members may then differ by more than training: by time, by place, by
who gave consent. A model that has seen neither tells such a difference, too. So the
attack is made on the first model that the server sent; what it finds there is no
membership. What is beyond it may be, but only if training sharpens no difference that
was there: nobody can know that, and no verdict is given.

Source: Meeus et al., "SoK: Membership inference attacks on LLMs are rushing nowhere",
SaTML 2025, and Duan et al., "Do membership inference attacks work on large language
models?", COLM 2024, on members that were not chosen at random.
"""

from dataclasses import dataclass, replace

from privaudit.auditing.attack import ATTACKS
from privaudit.auditing.attack_result import AttackResult, paired_scores
from privaudit.auditing.played_scenario import AuditPart, PlayedScenario
from privaudit.auditing.scenario import LOSS, TOKEN_LOSS
from privaudit.core.tensors import Tensors
from privaudit.federation.trainer import Reconstruction
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate


@dataclass(frozen=True)
class UntrainedControl:
    """One attack before and after training, on the same records.

    Attributes:
        before: Its AUROC on the first model that the server sent.
        after: On the models that the scenario shows.
        change: The latter less the former, paired by record.
    """

    attack: str
    before: Estimate
    after: Estimate
    change: Estimate


def attack_untrained(played: PlayedScenario) -> tuple[str, AttackResult, AttackResult]:
    """Return the cheap attack's name, and what it finds before training and after.

    Before it, the first broadcast stands in place of each client's model.
    """
    name = LOSS if played.adversary.task.kind == "classification" else TOKEN_LOSS
    attack = ATTACKS.find(name)()
    first = _first_model(played)
    assert first is not None  # where the part applies
    blank = Reconstruction(first)
    targets = [replace(target, reconstructed=blank) for target in played.targets]
    # Signals that are kept are of the scenario's models, not of this one.
    alone = replace(played.adversary, store=None)
    before = played.attack_once(name, attack, alone, targets)
    after = played.results.get(name)
    if after is None:
        after = played.attack_once(name, attack, played.adversary, played.targets)
    return name, before, after


def _compare(played: PlayedScenario) -> UntrainedControl:
    name, before, after = attack_untrained(played)
    groups = paired_scores(after.clients, before.clients)
    change = pooled_paired_auroc_difference(groups).estimate
    return UntrainedControl(name, before.auroc, after.auroc, change)


def can_attack_untrained(played: PlayedScenario) -> bool:
    """Say whether no coin chose the members, and there is a model before training."""
    return played.run.sampling == "unknown" and _first_model(played) is not None


def _first_model(played: PlayedScenario) -> Tensors | None:
    messages = played.run.transcript
    return next((m.tensors for m in messages if m.kind == "broadcast"), None)


UNTRAINED_CONTROL = AuditPart(
    "untrained_control",
    UntrainedControl | None,
    applies=can_attack_untrained,
    compute=_compare,
    nothing=None,
    title="Before training",
)
