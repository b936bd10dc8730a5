"""Randomness of a seed or key: one ChaCha20 key stream for every purpose.

All draws are made of the stream's bits by integer arithmetic, but for those of
:meth:`Stream.normal`, whose last bits may differ between processors. So permutations,
coins and integers are the same on every machine.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import Bool, Float32, Float64, Int64, UInt64

from privaudit.core.devices import here
from privaudit.core.errors import ConfigError
from privaudit.core.lazy_torch import Tensor, torch

KEY = 32  # bytes of a key: 256 bits
_WORD = 2**64
_ZEROS = memoryview(bytes(2**15))  # their cipher text is the key stream


def derive(secret: bytes, purpose: str, count: int) -> bytes:
    """Return bytes that depend on a secret and a purpose, by HKDF-SHA256.

    Args:
        secret: Of high entropy: what is derived has no more.
        purpose: Tells the uses of one secret apart.
        count: How many, at most 8160.

    Source: Krawczyk and Eronen, RFC 5869.
    """
    return HKDF(SHA256(), count, b"privaudit", purpose.encode()).derive(secret)


def name_of(purpose: str, round: int, client: str) -> str:
    """Return what a stream is called: no two triples share a name, whatever is in them.

    Example:
        >>> name_of("noise|1", 2, "client-3")
        '["noise|1", 2, "client-3"]'
    """
    return json.dumps([purpose, round, client])


class Stream:
    """Successive random numbers of one key and name; equal keys and names repeat them.

    Without the key, nothing tells them from random numbers, nor one stream from those
    of other names. One that knows the key, or can guess it, knows them all.

    Args:
        key: 256 bits, of this stream alone.

    Source: Nir and Langley, "ChaCha20 and Poly1305 for IETF protocols", RFC 8439.

    Example:
        >>> first, again = Stream.of(bytes(32), "coins"), Stream.of(bytes(32), "coins")
        >>> bool((first.words(4) == again.words(4)).all())
        True
    """

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(ChaCha20(key, bytes(16)), None).encryptor()

    @classmethod
    def of(cls, key: bytes, name: str) -> "Stream":
        """Return the stream that a key has under a name, from its start."""
        return cls(derive(key, name, KEY))

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        return self._encryptor.update(bytes(count))

    def words(self, count: int) -> UInt64[np.ndarray, " count"]:
        """Return the next 64-bit words, all values equally likely."""
        drawn = np.empty(count, dtype="<u8")
        into = drawn.view(np.uint8).data
        for first in range(0, len(into), len(_ZEROS)):  # in the processor's cache
            part = into[first : first + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        return drawn.astype(np.uint64, copy=False)

    def uniform(self, shape: int | Sequence[int] = ()) -> Float64[np.ndarray, "..."]:
        """Return multiples of 2^-53 in [0, 1), all equally likely."""
        words = self.words(_count(shape)) >> np.uint64(11)
        return (words * 2.0**-53).reshape(shape)

    def below(self, bound: int, count: int) -> Int64[np.ndarray, " count"]:
        """Return integers in [0, bound), all equally likely: other words are dropped.

        Raises:
            ConfigError: The bound is not in 1 to 2^63.
        """
        if not 1 <= bound <= 2**63:
            raise ConfigError(
                f"Random integers below {bound} were requested. Use a bound from 1 to "
                "2^63."
            )
        words = self.words(count)
        if (words > last_below(bound)).any():
            words = without_late(words, bound, self)
        return remainders(words, bound)

    def permutation(self, count: int) -> Int64[np.ndarray, " count"]:
        """Return 0 to count - 1 in an order of which all are equally likely."""
        return self.permutations(count, 1)[0]

    def permutations(self, count: int, times: int) -> Int64[np.ndarray, "times count"]:
        """Return the orders that as many calls of :meth:`permutation` would."""
        accepted = np.empty((0, count), dtype=np.int64)
        while len(accepted) < times:
            missing = times - len(accepted)
            words = self.words(missing * count).reshape(missing, count)
            orders = np.argsort(words, axis=1, kind="stable")
            ranked = np.take_along_axis(words, orders, axis=1)
            # Ties would favour an order.
            tied = (ranked[:, 1:] == ranked[:, :-1]).any(axis=1)
            accepted = np.concatenate([accepted, orders[~tied].astype(np.int64)])
        return accepted

    def coins(
        self, probability: float, shape: int | Sequence[int] = ()
    ) -> Bool[np.ndarray, "..."]:
        """Return whether each coin fell heads, of a probability exact to 2^-64.

        Raises:
            ConfigError: The probability is outside [0, 1].
        """
        if not 0 <= probability <= 1:
            raise ConfigError(
                f"Coins of probability {probability:g} were requested. It lies between "
                "0 and 1."
            )
        words, heads = self.words(_count(shape)), int(probability * _WORD)
        if heads == _WORD:
            return np.ones(shape, dtype=bool)
        return np.asarray(words < np.uint64(heads)).reshape(shape)

    def coin(self, probability: float) -> bool:
        """Return whether one coin fell heads."""
        return bool(self.coins(probability, 1)[0])

    def normal(self, shape: int | Sequence[int] = ()) -> Float64[np.ndarray, "..."]:
        """Return draws from N(0, 1), by Box-Muller on 53 bits, at most 8.6.

        For starts and directions. Noise that a certificate rests on is not made of
        them: of floating-point numbers, the last bits tell values apart.

        Source: Box and Muller, "A note on the generation of random normal deviates",
        Annals of Mathematical Statistics 29 (1958).
        """
        count = _count(shape)
        radius, angle = self.uniform((2, count))  # of 1 - radius: 0 has no logarithm
        draws = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
        return np.asarray(draws).reshape(shape)

    def normal_tensor(self, shape: Sequence[int]) -> Float32[Tensor, "..."]:
        """Return what :meth:`normal` draws, as a tensor of single precision."""
        return torch.from_numpy(self.normal(shape)).float().to(here())

    def uniform_tensor(self, shape: Sequence[int]) -> Float32[Tensor, "..."]:
        """Return multiples of 2^-24 in [0, 1), all equally likely, as a tensor."""
        drawn = (self.words(math.prod(shape)) >> np.uint64(40)) * 2.0**-24
        return torch.from_numpy(drawn.reshape(shape)).float().to(here())

    def numpy(self) -> np.random.Generator:
        """Return a numpy generator whose whole state, 384 bits, is of this stream.

        For libraries, bootstrap and folds. It is no cipher: draw no secret from it.
        """
        words = self.words(6)
        return np.random.Generator(np.random.Philox(key=words[:2], counter=words[2:]))


def last_below(bound: int) -> np.uint64:
    """Return the last word of whole multiples of a bound: those beyond are dropped."""
    return np.uint64(_WORD - _WORD % bound - 1)


def without_late(
    words: UInt64[np.ndarray, " count"], bound: int, stream: "Stream"
) -> UInt64[np.ndarray, " count"]:
    """Return as many words up to :func:`last_below`: later ones of the stream behind."""
    parts, missing = [], len(words)
    while missing:
        parts.append(words[np.flatnonzero(words <= last_below(bound))])
        missing -= len(parts[-1])
        words = stream.words(missing)
    return np.concatenate(parts)


def remainders(
    words: UInt64[np.ndarray, " count"], bound: int
) -> Int64[np.ndarray, " count"]:
    """Return words modulo a bound of at most 2^63.

    By numpy's quotient, which multiplies: its remainder divides, and takes thrice as long.
    """
    multiples = words // np.uint64(bound)
    multiples *= np.uint64(bound)
    return np.subtract(words, multiples, out=multiples).view(np.int64)


def _count(shape: int | Sequence[int]) -> int:
    return shape if isinstance(shape, int) else math.prod(shape)


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
