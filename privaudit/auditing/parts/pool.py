"""Trainings whose scores are one audit: what is said of these, of the method, and of one.

Each has coins of its own, so membership is a random assignment within each client of each
training, whatever records, clients and shadow models they share: the verdict is on these
trainings. Of the method they are a sample, and a training is the replicate. Of one
training's models neither says anything.
"""

from dataclasses import dataclass

from privaudit.auditing.played_scenario import AuditPart
from privaudit.statistics.estimate import Estimate
from privaudit.statistics.verdict import LOOKS, Sampling


@dataclass(frozen=True)
class Pool:
    """What was pooled.

    Attributes:
        ledgers: The SHA-256 of the membership of each.
        aurocs: Of each by itself.
        method: Over trainings by Student's t, and never narrower than of these trainings;
            unresolved with fewer than three.
        seconds: What a training and its attack took; 0 where nobody knows.
        is_sequential: Whether a verdict may end the trainings.
    """

    runs: tuple[str, ...]
    ledgers: tuple[str, ...]
    aurocs: tuple[Estimate, ...]
    method: Estimate
    seconds: float
    is_sequential: bool


def sentences(pool: Pool | None, sampling: Sampling) -> list[str]:
    """Say what was pooled, and whom each number is about."""
    if pool is None:
        return []
    count, values = len(pool.runs), [one.value for one in pool.aurocs]
    said = []
    if count > 1:
        said.append(
            f"{count} trainings with coins of their own are one audit: the verdict is on "
            f"these ({', '.join(pool.runs)}). For the method, other trainings too: AUROC "
            f"{pool.method}, by Student's t over trainings. One training by itself: "
            f"{min(values):.3f} to {max(values):.3f}, and no verdict."
        )
    if pool.is_sequential:
        said.append(
            f"Look {count} of at most {LOOKS}, which were planned: each has a quarter of the "
            "error that a single look may make."
        )
    return said


POOL: AuditPart[Pool | None] = AuditPart(
    "pool",
    Pool | None,
    applies=lambda played: False,  # it is made of audits
    compute=lambda played: None,
    nothing=None,
    title="Trainings",
    says=sentences,
)
