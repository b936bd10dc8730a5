"""Masking graph where not all pairs mask: a random ring, and how many are on it.

Source: Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure single-server aggregation
with (poly)logarithmic overhead", CCS 2020: a Harary graph of k on a random order of the
clients, and shares along its edges. The conditions of "passive" are its definition of a
good graph in section 3. Those of "active" are of our own, for clients that compare what
they sign with their neighbours; docs/secure-aggregation.md derives them.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import pydantic.dataclasses
from pydantic import Field

from privaudit.core.streams import Stream
from privaudit.privacy.secure_aggregation.packets import Party, positions

ServerKind = Literal["active", "passive"]
Portion = Annotated[float, Field(ge=0, lt=1)]


@pydantic.dataclasses.dataclass(frozen=True)
class Assumptions:
    """What a graph must withstand.

    Who colludes, and under "passive" who is lost, does not depend on the graph.

    Attributes:
        server: "passive" follows the protocol and reads; "active" breaks every rule,
            and chooses whom it calls lost with the graph before it.
        corrupt: Share of clients that collude with it.
        lost: Share of clients that are lost, for a sum to come about.
        security: No more than 2^-security graphs fail to hide.
        correctness: No more than 2^-correctness graphs leave a client too few
            neighbours.
    """

    server: ServerKind = "active"
    corrupt: Portion = 0.1
    lost: Portion = 0.1
    security: Annotated[int, Field(ge=1, le=100)] = 40
    correctness: Annotated[int, Field(ge=1, le=100)] = 30


@dataclass(frozen=True)
class Density:
    """How many neighbours a client has, and how many it takes to unmask.

    Attributes:
        neighbours: Of each client: an even number.
        threshold: How many, with the client itself, give a secret of it back, and
            have to sign a list before a client acts on it.
    """

    neighbours: int
    threshold: int


@dataclass(frozen=True)
class MaskingGraph:
    """A Harary graph: clients around a ring, each beside as many on either side.

    Attributes:
        order: The clients, as they stand around the ring.
        density: How many are neighbours.
    """

    order: tuple[Party, ...]
    density: Density

    @classmethod
    def drawn(cls, parties: int, density: Density, seed: bytes) -> "MaskingGraph":
        """Return the graph of a public seed: all orders are equally likely.

        Args:
            parties: How many clients there are, more than neighbours and themselves.
            density: How many are neighbours.
            seed: 32 bytes. Who sets them knowing who colludes sets the neighbours.
        """
        order = Stream(seed).permutation(parties)
        return cls(tuple(order.tolist()), density)

    def near(self, client: Party) -> tuple[Party, ...]:
        """Return a client and its neighbours, in rising order."""
        return self._near[client]

    @property
    def text(self) -> bytes:
        """What signatures are bound to."""
        density = [self.density.neighbours, self.density.threshold]
        return b"graph|" + positions([*density, *self.order]).tobytes()

    @cached_property
    def _near(self) -> dict[Party, tuple[Party, ...]]:
        count, reach = len(self.order), self.density.neighbours // 2
        around = self.order * 3
        return {
            client: tuple(
                sorted(around[count + place - reach : count + place + reach + 1])
            )
            for place, client in enumerate(self.order)
        }


@lru_cache(maxsize=64)
def sparsest(parties: int, assumed: Assumptions) -> Density | None:
    """Return the fewest neighbours that withstand what is assumed, and the threshold.

    None where nothing below all pairs does.

    Example:
        >>> sparsest(100, Assumptions())
        Density(neighbours=42, threshold=33)
        >>> sparsest(100, Assumptions("passive"))
        Density(neighbours=20, threshold=11)
    """
    for neighbours in range(2, parties - 1, 2):
        density = _hiding(parties, neighbours, assumed)
        if stuck(parties, density, assumed) <= 2.0**-assumed.correctness:
            return density
    return None


def _hiding(parties: int, neighbours: int, assumed: Assumptions) -> Density:
    """Return the lowest threshold that hides; above all neighbours if none does."""

    def hides(threshold: int) -> bool:
        density = Density(neighbours, threshold)
        return exposed(parties, density, assumed) <= 2.0**-assumed.security

    above_one = range(2, neighbours + 1)  # below, it would be one's own share
    return Density(neighbours, 2 + bisect_left(above_one, True, key=hides))


def exposed(parties: int, density: Density, assumed: Assumptions) -> float:
    """Return a bound on the chance that a graph does not hide, by the union of events.

    Against a passive server these are that an honest client has a threshold of corrupt
    neighbours, or that honest clients who stay are not connected: then two stretches of
    the ring, of neighbours / 2 clients, are all corrupt or lost.

    Against an active one: that one side of an honest client has threshold - neighbours
    / 2 - 1 corrupt clients or more. Else no choice of whom to call lost parts those
    who are in the sum.
    """
    from scipy.stats import hypergeom  # slow to import

    corrupt = _most(assumed.corrupt, parties)
    half, honest = density.neighbours // 2, parties - corrupt
    if assumed.server == "active":
        most = density.threshold - half - 2
        return 2 * honest * float(hypergeom.sf(most, parties - 1, corrupt, half))
    around = float(
        hypergeom.sf(density.threshold - 1, parties - 1, corrupt, density.neighbours)
    )
    gone = min(parties, corrupt + _most(assumed.lost, parties))
    pairs = math.comb(parties, 2) - parties * half  # of stretches that part a ring
    parted = float(hypergeom.pmf(density.neighbours, parties, gone, density.neighbours))
    return honest * around + pairs * parted


def stuck(parties: int, density: Density, assumed: Assumptions) -> float:
    """Return a bound on the chance that a client has too few neighbours who stay."""
    from scipy.stats import hypergeom  # slow to import

    there = parties - _most(assumed.lost, parties)
    few = hypergeom.cdf(density.threshold - 1, parties - 1, there, density.neighbours)
    return parties * float(few)


def _most(share: float, parties: int) -> int:
    """Return how many clients a share is at most; 0.07 of 100 are 7, not 8."""
    return math.ceil(round(share * parties, 6))
