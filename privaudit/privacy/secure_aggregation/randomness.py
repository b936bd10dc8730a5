"""Secrets of a party: of a key, of the run's seed, or of the operating system."""

import os
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from privaudit.core.seeds import Seeds
from privaudit.core.streams import KEY, Stream, derive, name_of


@runtime_checkable
class SecretSource(Protocol):
    """One party's random bytes in one round."""

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return ``count`` bytes for a purpose; ask for each purpose once."""
        ...


@dataclass(frozen=True)
class RunKey:
    """256 bits that all secrets of one run follow from: equal keys, equal transcripts.

    Masks serve once. Under one key, two runs that differ give the difference of single
    uploads away, and where they lose other clients, the uploads.

    Attributes:
        secret: The bytes; whoever has them removes every mask.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def of_seed(cls, seeds: Seeds, run: str) -> "RunKey":
        """Return the key of a run that can be repeated from its seed.

        Args:
            seeds: Of the run. A seed that can be guessed is as good as the key.
            run: Tells runs of one seed apart: all that their uploads depend on.
        """
        return cls(derive(seeds.key, name_of("key of a run", 0, run), KEY))


@dataclass(frozen=True)
class KeyedSecrets:
    """A party's bytes in a round, which follow from the run's key: always the same."""

    key: RunKey
    round: int
    party: str

    @classmethod
    def of_seed(cls, seeds: Seeds, round: int, party: str) -> "KeyedSecrets":
        """Return a simulation's secrets: equal seeds give equal keys and masks.

        Whoever knows the seed can remove every mask, and two sums of one seed share
        their masks. Runs have a :class:`RunKey`.
        """
        return cls(RunKey.of_seed(seeds, ""), round, party)

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return the purpose's bytes, the same at every call."""
        name = name_of(f"entropy {purpose}", self.round, self.party)
        return Stream.of(self.key.secret, name).take(count)


class SystemSecrets:
    """The operating system's randomness: nothing can be repeated."""

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return fresh bytes."""
        return os.urandom(count)
