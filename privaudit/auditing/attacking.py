"""One attack made on several clients, and its scores set beside the truth."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from privaudit.auditing.attack import Adversary, Attack, Scores, Target
from privaudit.auditing.attack_result import AttackResult, ClientScores, evaluate_scores
from privaudit.core.errors import ConfigError
from privaudit.federated.runs.ledger import Ledger

Asked = Callable[[str], Int[np.ndarray, " candidates"]]  # about a client


def make_attack(
    name: str,
    attack: Attack,
    adversary: Adversary,
    targets: Sequence[Target],
    truth: tuple[Asked, Ledger],
) -> AttackResult:
    """Return what an attack finds out.

    Args:
        name: Of the attack, as it is reported.
        attack: It sees the adversary and the targets, and nothing else.
        adversary: Who makes it.
        targets: Who is attacked.
        truth: Which records each client's candidates are, and who trained on them.

    Raises:
        ConfigError: A score is not finite.
    """
    scores = attack(adversary, targets)
    for target, some in zip(targets, scores, strict=True):
        if not np.isfinite(some.scores).all():
            raise ConfigError(
                f"The attack {name!r} gave scores for {target.client} that are not "
                "finite. That is a fault of the attack: fix it, and audit again."
            )
    joined = [
        _beside_truth(target, some, *truth)
        for target, some in zip(targets, scores, strict=True)
    ]
    return evaluate_scores(name, repr(attack), attack.threshold, joined)


def _beside_truth(
    target: Target, found: Scores, asked: Asked, ledger: Ledger
) -> ClientScores:
    records = asked(target.client)
    return ClientScores(
        client=target.client,
        records=records,
        labels=target.candidates.labels.numpy(),
        scores=found.scores.astype(np.float64),
        guesses=found.guesses,
        is_member=ledger.is_member[records],
    )
