"""Shares of members and of other candidates that something befell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from privaudit.statistics.estimate import Estimate, proportion, two_proportions

Hits = Bool[np.ndarray, " units"]


@dataclass(frozen=True)
class MemberShares:
    """Which share of records something befell; of groups with one coin, one at least.

    Attributes:
        members: Of those that were trained on.
        others: Of the same clients' candidates that were not: the null.
        beyond: The first less the second; above 0 it goes with training.
    """

    members: Estimate
    others: Estimate
    beyond: Estimate

    def __str__(self) -> str:
        return f"members {self.members}; others {self.others}; difference {self.beyond}"


def share(hits: Sequence[Hits], truth: Sequence[Hits]) -> MemberShares | None:
    """Return the shares of all clients' members and others; None without either."""
    hit, member = np.concatenate(hits), np.concatenate(truth)
    counts = [(int(hit[of].sum()), int(of.sum())) for of in (member, ~member)]
    if not all(size for _, size in counts):
        return None
    members, others = counts
    return MemberShares(
        proportion(*members), proportion(*others), two_proportions(*members, *others)
    )
