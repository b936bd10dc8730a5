"""Where randomness comes from: one seed, and a stream for every purpose."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from privaudit.streams import KEY, Stream, derive, name_of


@dataclass(frozen=True)
class Seeds:
    """Independent streams, named by purpose, round and client.

    A stream depends on its name and the seed alone, so that adding a client, training
    clients together or resuming a run changes no other draw.

    Attributes:
        seed: The number a user gives.

    Example:
        >>> first = Seeds(0).generator("batches", round=3, client="client-1")
        >>> again = Seeds(0).generator("batches", round=3, client="client-1")
        >>> torch.rand(1, generator=first) == torch.rand(1, generator=again)
        tensor([True])
    """

    seed: int

    @cached_property
    def key(self) -> bytes:
        """256 bits that follow from the seed: no harder to guess than the seed is."""
        return derive(str(self.seed).encode(), "key of a seed", KEY)

    def stream(self, purpose: str, *, round: int = 0, client: str = "") -> Stream:
        """Return the stream of one purpose, round and client, from its start."""
        return Stream.of(self.key, name_of(purpose, round, client))

    def generator(
        self, purpose: str, *, round: int = 0, client: str = ""
    ) -> torch.Generator:
        """Return a fresh torch stream on the CPU."""
        return torch.Generator().manual_seed(self._derive(purpose, round, client))

    def numpy(
        self, purpose: str, *, round: int = 0, client: str = ""
    ) -> np.random.Generator:
        """Return a fresh numpy stream."""
        return np.random.default_rng(self._derive(purpose, round, client))

    def child(self, purpose: str, index: int = 0) -> "Seeds":
        """Return seeds of their own for a part of the work, such as one shadow."""
        return Seeds(self._derive(purpose, index, "child"))

    def _derive(self, purpose: str, round: int, client: str) -> int:
        name = f"{self.seed}|{purpose}|{round}|{client}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1
