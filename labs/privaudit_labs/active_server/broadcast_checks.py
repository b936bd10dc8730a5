"""Checks by clients of a server that does not keep to its rule.

Two checks, which need nothing of the server's. Clients of a trainer that sends all the
same compare digests of what they received: whoever was sent something else stands out,
whatever was in it. A client alone holds a broadcast against how far the earlier ones
moved: a server that stays within that is not noticed so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from privaudit.core.tensors import Tensors, digest
from privaudit.federation.trainer import ClientId

FEWEST_MOVES = 2  # that a client has seen before it may be alarmed


def differing(received: Mapping[ClientId, Tensors]) -> tuple[ClientId, ...]:
    """Return those clients that received other tensors than most did.

    No false alarm where the rule sends all the same: digests of equal tensors are
    equal. It takes a channel between clients that the server does not control.

    Args:
        received: By client, in one round. Without a majority nobody can tell who was
            singled out, and all are named.
    """
    seals = {client: _seal(tensors) for client, tensors in received.items()}
    counts = Counter(seals.values())
    if len(counts) < 2:
        return ()
    usual, most = counts.most_common(1)[0]
    if 2 * most <= len(seals):
        return tuple(seals)
    return tuple(client for client, seal in seals.items() if seal != usual)


def _seal(tensors: Tensors) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, digest(tensor)) for name, tensor in tensors.items()))


def distance(first: Tensors, second: Tensors) -> float:
    """Return the Euclidean distance of two broadcasts, as one vector each."""
    squares = [
        float(((first[name].double() - second[name].double()) ** 2).sum())
        for name in sorted(first)
    ]
    return float(torch.tensor(squares, dtype=torch.float64).sum().sqrt())


@dataclass(frozen=True)
class MoveBound:
    """A bound on how far a broadcast may lie from the one before.

    Attributes:
        factor: Times the farthest of the moves that the client saw before.
    """

    factor: float = 2.0

    def reach(self, earlier: Sequence[Tensors]) -> float | None:
        """Return the bound after some broadcasts; None after too few."""
        pairs = pairwise(earlier)
        moves = [distance(old, new) for old, new in pairs]
        if len(moves) < FEWEST_MOVES:
            return None
        return self.factor * max(moves)

    def alarms(self, earlier: Sequence[Tensors], received: Tensors) -> bool:
        """Say whether a broadcast lies farther from the last one than the bound."""
        bound = self.reach(earlier)
        return bound is not None and distance(received, earlier[-1]) > bound
