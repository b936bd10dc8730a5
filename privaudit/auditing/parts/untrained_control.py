"""Where no coin chose the members: the same attack on the model before any training.

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

from privaudit.auditing.attack import ATTACKS, Target
from privaudit.auditing.audit_part import AuditPart
from privaudit.auditing.default_attacks import NAMED, TOKEN_LOSS
from privaudit.auditing.played_scenario import PlayedScenario
from privaudit.core.tensors import Tensors
from privaudit.federated.trainer import Reconstruction
from privaudit.statistics.comparisons import pooled_paired_auroc_difference
from privaudit.statistics.estimate import Estimate


@dataclass(frozen=True)
class UntrainedControl:
    """One attack before and after training, on the same records.

    Attributes:
        attack: Its name.
        before: Its AUROC on the first model that the server sent.
        after: On the models that the scenario shows.
        change: The latter less the former, paired by record.
    """

    attack: str
    before: Estimate
    after: Estimate
    change: Estimate


def attack_untrained(played: PlayedScenario) -> UntrainedControl:
    """Make the named attack on the first broadcast, in place of each client's model."""
    name = NAMED if played.adversary.task.kind == "classification" else TOKEN_LOSS
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
        models: list[Target] = list(played.targets)
        after = played.attack_once(name, attack, played.adversary, models)
    pairs = zip(after.clients, before.clients, strict=True)
    groups = [(one.scores, other.scores, one.is_member) for one, other in pairs]
    change = pooled_paired_auroc_difference(groups).estimate
    return UntrainedControl(name, before.auroc, after.auroc, change)


def _first_model(played: PlayedScenario) -> Tensors | None:
    messages = played.run.transcript
    return next((m.tensors for m in messages if m.kind == "broadcast"), None)


UNTRAINED_CONTROL = AuditPart(
    "untrained_control",
    UntrainedControl | None,
    applies=lambda played: (
        played.run.sampling != "coin" and _first_model(played) is not None
    ),
    compute=attack_untrained,
    nothing=None,
    title="Before training",
)
