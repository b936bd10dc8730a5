"""Which records fall to every attack of an audit, and not to one alone?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtrc

from privaudit.auditing.attack_result import AttackResult, ClientScores
from privaudit.statistics.curve import mean_ranks
from privaudit.statistics.estimate import Estimate, proportion, two_proportions

TOP = 10  # percent of a client's candidates that an attack points at


@dataclass(frozen=True)
class RankedClient:
    """One client's candidates under all attacks.

    Attributes:
        scores: Any attack's entry: records, classes and the truth are the same in all.
        ranks: Each candidate's place among the client's by each attack, in (0, 1), ties
            sharing the mean of theirs; 1 is the likeliest member.
    """

    scores: ClientScores
    ranks: Float[np.ndarray, "attacks candidates"]

    @property
    def seen(self) -> Int[np.ndarray, " candidates"]:
        """At how many attacks a candidate is in the top share."""
        is_top: Bool[np.ndarray, "attacks candidates"] = self.ranks > 1 - TOP / 100
        return is_top.sum(axis=0)


@dataclass(frozen=True)
class SharedLevel:
    """Records that at least so many attacks point at.

    Attributes:
        attacks: So many, at least one.
        members: The share of members.
        others: The share of the other candidates.
        independent: What both would be if attacks were independent of one another and
            of membership: the upper tail of a binomial.
    """

    attacks: int
    members: Estimate
    others: Estimate
    beyond: Estimate
    independent: float


@dataclass(frozen=True)
class SharedExposure:
    """How many records fall to several attacks at once.

    An attack that knows nothing puts members and others into its top share alike, and
    attacks that look at one model agree even then. So the others are what chance is:
    they were not trained on, and the attacks' agreement is theirs, too.

    Attributes:
        top: The share of a client's candidates that counts, in percent.
        levels: For at least one attack, two, and so on, up to all.
    """

    top: int
    levels: tuple[SharedLevel, ...]

    @property
    def all(self) -> SharedLevel:
        """Records that every attack points at."""
        return self.levels[-1]

    @property
    def most(self) -> SharedLevel:
        """Records that more than half of the attacks point at."""
        return self.levels[len(self.levels) // 2]


def rank_clients(results: Mapping[str, AttackResult]) -> list[RankedClient]:
    """Return those clients that all attacks attacked, with their ranks by each of at least one."""
    by_attack = [{one.client: one for one in leak.clients} for leak in results.values()]
    ranked = []
    for name, first in by_attack[0].items():
        entries = [clients.get(name) for clients in by_attack]
        alike = [
            one.scores
            for one in entries
            if one is not None and np.array_equal(one.records, first.records)
        ]
        if len(alike) < len(entries):
            continue
        ranks = np.stack([mean_ranks(one) for one in alike]) / (len(first.records) + 1)
        ranked.append(RankedClient(first, ranks))
    return ranked


def share_exposure(clients: Sequence[RankedClient]) -> SharedExposure:
    """Return how many records several attacks point at."""
    attacks = len(clients[0].ranks)
    seen = np.concatenate([one.seen for one in clients])
    is_member = np.concatenate([one.scores.is_member for one in clients])
    members, others = seen[is_member], seen[~is_member]

    def level(least: int) -> SharedLevel:
        hit = int((members >= least).sum()), len(members)
        miss = int((others >= least).sum()), len(others)
        chance = float(bdtrc(least - 1, attacks, TOP / 100))
        difference = two_proportions(*hit, *miss)
        return SharedLevel(
            least, proportion(*hit), proportion(*miss), difference, chance
        )

    return SharedExposure(TOP, tuple(level(least) for least in range(1, attacks + 1)))
