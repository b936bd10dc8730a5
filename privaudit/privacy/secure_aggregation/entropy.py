"""Where a party's secrets come from: the run's seed, or the operating system."""

import os
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from privaudit.privacy.secure_aggregation.primitives import derive, key_stream
from privaudit.seeds import Seeds


@runtime_checkable
class Entropy(Protocol):
    """One party's random bytes in one round."""

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return ``count`` bytes for a purpose; ask for each purpose once."""
        ...


@dataclass(frozen=True)
class SeededEntropy:
    """A simulation's randomness: equal seeds give equal keys, masks and transcripts.

    Whoever knows the run's seed can remove every mask. A run's seed is its owner's;
    no view holds it.

    Attributes:
        seeds: Of the run.
        round: The round.
        party: Whose it is.
    """

    seeds: Seeds
    round: int
    party: str

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return the purpose's bytes, the same at every call."""
        secret = f"{self.seeds.seed}|{self.party}".encode()
        key = derive(secret, f"entropy|{self.round}|{purpose}", 32)
        return key_stream(key, count)


class SystemEntropy:
    """The operating system's randomness: nothing can be repeated."""

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return fresh bytes."""
        return os.urandom(count)
