"""Randomness of a seed: a stream for every purpose."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from privaudit.core.streams import KEY, Stream, derive, name_of

Randomness = Literal["seed", "system"]
"""Where a run's secret key comes from: of its seed, or drawn by the system."""


@dataclass(frozen=True)
class Seeds:
    """Independent streams, named by purpose, round and client.

    A stream depends on its name and the seed alone, so that adding a client, training
    clients together or resuming a run changes no other draw.

    Attributes:
        seed: The number a user gives; or 256 bits, of a key or of a part of the work.
            All follows from it: a number that can be guessed hides nothing.

    Example:
        >>> Seeds(0).stream("batches", round=3, client="client-1").below(10, 4)
        array([4, 4, 5, 4])
    """

    seed: int

    @classmethod
    def of_key(cls, key: bytes) -> "Seeds":
        """Return the seeds that are a key of 256 bits, such as a run's secret one."""
        return cls(int.from_bytes(key))

    @cached_property
    def key(self) -> bytes:
        """256 bits that follow from the seed: no harder to guess than the seed is."""
        return derive(str(self.seed).encode(), "key of a seed", KEY)

    def stream(self, purpose: str, *, round: int = 0, client: str = "") -> Stream:
        """Return the stream of one purpose, round and client, from its start."""
        return Stream.of(self.key, name_of(purpose, round, client))

    def child(self, purpose: str, index: int = 0) -> "Seeds":
        """Return seeds of their own for a part of the work, such as one shadow."""
        part = derive(self.key, name_of(f"child {purpose}", index, ""), KEY)
        return Seeds.of_key(part)


@dataclass(frozen=True)
class FixedSeed:
    """The draws that bundled data sets and models were made of, and nothing else.

    They keep their bytes as long as these generators stay as they are. Public: torch
    keeps 32 bits of such a seed, which can all be tried. Runs draw from :class:`Seeds`.
    """

    seed: int

    def torch(self, purpose: str) -> torch.Generator:
        """Return a fresh torch generator on the CPU."""
        return torch.Generator().manual_seed(self._derive(purpose, ""))

    def numpy(self, purpose: str) -> np.random.Generator:
        """Return a fresh numpy generator."""
        return np.random.default_rng(self._derive(purpose, ""))

    def child(self, purpose: str) -> "FixedSeed":
        """Return a seed for a part of the work."""
        return FixedSeed(self._derive(purpose, "child"))

    def _derive(self, purpose: str, part: str) -> int:
        name = f"{self.seed}|{purpose}|0|{part}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1
