"""Where scores meet the truth: from scores and ledger to estimates and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from privaudit.statistics.curve import RocCurve, roc_curve, tied, tpr_at_fpr
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.guesses import advantage, class_averaged_success, success_rate
from privaudit.statistics.roc import auroc, pooled_auroc
from privaudit.statistics.verdict import Sampling, Verdict, judge_leak

FPRS = (0.1, 0.01, 0.001)


@dataclass(frozen=True)
class ClientScores:
    """One client's scores beside the truth.

    Where records share a coin, each candidate is a group: its score is the mean of its
    records' scores, and more than half of them must be guessed to be members.

    Attributes:
        client: Its name.
        records: Positions of the candidates in the data set; of a group, its first.
        labels: Classes of the candidates.
        scores: Higher means more likely a member.
        guesses: By a threshold fixed elsewhere.
        is_member: The truth.
    """

    client: str
    records: Int[np.ndarray, " candidates"]
    labels: Int[np.ndarray, " candidates"]
    scores: Float[np.ndarray, " candidates"]
    guesses: Bool[np.ndarray, " candidates"]
    is_member: Bool[np.ndarray, " candidates"]

    @property
    def groups(
        self,
    ) -> tuple[Float[np.ndarray, " members"], Float[np.ndarray, " others"]]:
        """Members' and non-members' scores."""
        return self.scores[self.is_member], self.scores[~self.is_member]


@dataclass(frozen=True)
class AttackResult:
    """What one attack found out.

    Attributes:
        attack: Its name.
        settings: Its parameters, as a record.
        threshold: How the threshold of the guesses was fixed.
        auroc: Per-client AUROCs averaged by pairs, for other records of these clients.
        auroc_new_clients: The same, for other clients.
        tpr_at_fpr: By false-positive rate, one threshold for all clients.
        success: Share of right guesses, averaged over classes.
        success_plain: Share of right guesses.
        advantage: True- less false-positive rate of the guesses.
        by_client: Each client's AUROC.
        verdict: What may be said.
        tied: How many candidates share their score with another of the same client:
            no threshold parts them.
        package: Whose plugin the attack is, with its version; empty for a built-in one.
    """

    attack: str
    settings: str
    threshold: str
    auroc: Estimate
    auroc_new_clients: Estimate
    tpr_at_fpr: Mapping[float, Estimate]
    success: Estimate
    success_plain: Estimate
    advantage: Estimate
    by_client: Mapping[str, Estimate]
    verdict: Verdict
    tied: int
    clients: Sequence[ClientScores] = field(repr=False)
    package: str = ""

    def roc(self) -> RocCurve:
        """Return the ROC curve over all clients' candidates, one threshold for all."""
        return roc_curve(*_pooled(self.clients))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the scores, for audit.json."""
        return {
            "attack": self.attack,
            "settings": self.settings,
            **({"package": self.package} if self.package else {}),
            "threshold": self.threshold,
            "auroc": self.auroc.to_dict(),
            "auroc_new_clients": self.auroc_new_clients.to_dict(),
            "tpr_at_fpr": {f"{f:g}": e.to_dict() for f, e in self.tpr_at_fpr.items()},
            "success": self.success.to_dict(),
            "success_plain": self.success_plain.to_dict(),
            "advantage": self.advantage.to_dict(),
            "by_client": {c: e.to_dict() for c, e in self.by_client.items()},
            "tied": self.tied,
            "verdict": {"kind": self.verdict.kind, "sentence": self.verdict.sentence},
        }


def evaluate_scores(
    attack: str,
    settings: str,
    threshold: str,
    clients: Sequence[ClientScores],
    package: str = "",
    sampling: Sampling = "coin",
) -> AttackResult:
    """Return what an attack's scores say, given the truth and how it was chosen."""
    members, others = _pooled(clients)
    truth = np.concatenate([c.is_member for c in clients])
    guesses = np.concatenate([c.guesses for c in clients])
    labels = np.concatenate([c.labels for c in clients])
    groups = [c.groups for c in clients]
    pooled = pooled_auroc(groups)
    return AttackResult(
        attack=attack,
        settings=settings,
        threshold=threshold,
        auroc=pooled,
        auroc_new_clients=pooled_auroc(groups, population="new"),
        tpr_at_fpr={fpr: tpr_at_fpr(members, others, fpr) for fpr in FPRS},
        success=class_averaged_success(truth, guesses, labels),
        success_plain=success_rate(truth, guesses),
        advantage=advantage(truth, guesses),
        by_client={
            c.client: auroc(*c.groups) for c in clients if all(map(len, c.groups))
        },
        verdict=judge_leak(pooled, sampling=sampling),
        tied=sum(tied(c.scores) for c in clients),
        clients=clients,
        package=package,
    )


def _pooled(
    clients: Sequence[ClientScores],
) -> tuple[Float[np.ndarray, " members"], Float[np.ndarray, " others"]]:
    groups = [c.groups for c in clients]
    return (
        np.concatenate([members for members, _ in groups]),
        np.concatenate([others for _, others in groups]),
    )
