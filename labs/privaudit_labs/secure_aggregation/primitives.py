"""Primitives of the secure sum: keys, seals, secrets, shares, masks and fixed-point codes.

Cryptography is that of the package ``cryptography`` (OpenSSL). Shamir's secret sharing is
of 16 bytes, over the field of 2^128 elements: field, polynomial and the form of shares are
those of PyCryptodome's ``Crypto.Protocol.SecretSharing``, and either can read the other's
shares. That one draws its coefficients from the operating system and takes no others, so
that no run could be repeated or resumed with it; and it inverts anew for each secret.
"""

import hashlib
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from jaxtyping import Float64, Int64

from privaudit.core.errors import ConfigError, TrainingError
from privaudit.core.seeds import KEY as KEY  # of a public key, and of a symmetric one
from privaudit.core.seeds import Seeds, Stream, name_of
from privaudit.core.seeds import derive as derive
from privaudit.federation.masked_sum import COARSEST
from privaudit.runs.run_key import key_of_seed
from privaudit_labs.secure_aggregation.packets import Codes, Party

SEED = 16  # bytes of a secret that is shared out: X25519 is no stronger than 128 bits
TAG = 16  # bytes by which a sealed text is longer
DIGEST = 16  # bytes of a commitment to 128 random bits


def key_pair(seed: bytes) -> tuple[X25519PrivateKey, bytes]:
    """Return the private key that a seed stands for, and its public key."""
    private = X25519PrivateKey.from_private_bytes(derive(seed, "private key", KEY))
    return private, private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return what two parties share, from either's private and the other's public key.

    Raises:
        ValueError: The public key is of low order, so that the shared bytes would not
            depend on the private key.
    """
    return private.exchange(X25519PublicKey.from_public_bytes(public))


def is_low_order(public: bytes) -> bool:
    """Say whether every agreement with a public key would fail."""
    try:
        agree(key_pair(bytes(SEED))[0], public)
    except ValueError:
        return True
    return False


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate by ChaCha20-Poly1305; a key seals one text only."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the text, or None where it was altered or sealed under another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None


def commitment(secret: bytes, purpose: str) -> bytes:
    """Return a digest that binds to 128 random bits, and hides them."""
    return hashlib.sha256(f"{purpose}|".encode() + secret).digest()[:DIGEST]


@runtime_checkable
class SecretSource(Protocol):
    """One party's random bytes in one round."""

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return ``count`` bytes for a purpose; ask for each purpose once."""


@dataclass(frozen=True)
class RunKey:
    """256 bits that all secrets of one run follow from: equal keys, equal transcripts.

    Masks serve once. Under one key, two runs that differ give the difference of single
    uploads away, and where they lose other clients, the uploads.

    Attributes:
        secret: The bytes; whoever has them removes every mask.
    """

    secret: bytes = field(repr=False)


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
        return cls(RunKey(key_of_seed(seeds, "")), round, party)

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return the purpose's bytes, the same at every call."""
        name = name_of(f"entropy {purpose}", self.round, self.party)
        return Stream.of(self.key.secret, name).take(count)


class SystemSecrets:
    """The operating system's randomness: nothing can be repeated."""

    def __call__(self, purpose: str, count: int) -> bytes:
        """Return fresh bytes."""
        return os.urandom(count)


DEGREE = 128
POLYNOMIAL = (1 << DEGREE) | 0b10000111  # x^128 + x^7 + x^2 + x + 1


def split(
    secret: bytes, threshold: int, holders: Collection[int], random: bytes
) -> dict[int, bytes]:
    """Return each holder's share; any ``threshold`` of them give the secret back.

    Fewer tell nothing. Party i, counted from 0, holds the polynomial's value at i + 1.

    Source: Shamir, "How to share a secret", CACM 1979.

    Args:
        secret: 16 bytes.
        threshold: At least 1.
        holders: At least ``threshold`` parties.
        random: 16 (threshold - 1) bytes: the coefficients.
    """
    parts = [random[i : i + SEED] for i in range(0, len(random), SEED)]
    assert len(parts) == threshold - 1 <= len(holders)
    coefficients = [int.from_bytes(part) for part in (*parts, secret)]
    return {i: _value(coefficients, i + 1).to_bytes(SEED) for i in holders}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret from exactly as many shares as are needed, by party.

    Wrong shares, and too few, give another secret: nothing here can tell.
    """
    secret = 0
    for share, weight in zip(shares.values(), _weights(tuple(shares)), strict=True):
        secret ^= times(int.from_bytes(share), weight)
    return secret.to_bytes(SEED)


def times(one: int, other: int) -> int:
    """Return the product of two elements.

    Example:
        >>> times(1 << 127, 2) == 0b10000111
        True
    """
    return _scaled(max(one, other), _bits(min(one, other)))


def _value(coefficients: Sequence[int], x: int) -> int:
    """Return a polynomial's value, its highest coefficient first."""
    value, bits = 0, _bits(x)
    for coefficient in coefficients:
        value = _scaled(value, bits) ^ coefficient
    return value


def _scaled(value: int, bits: Sequence[int]) -> int:
    """Return an element times the one with these bits.

    Splitting for 100 clients takes a million such products.
    """
    product = 0
    for bit in bits:
        product ^= value << bit
    while above := product >> DEGREE:
        product ^= above << DEGREE ^ above ^ above << 1 ^ above << 2 ^ above << 7
    return product


def _bits(element: int) -> Sequence[int]:
    return [bit for bit in range(element.bit_length()) if element >> bit & 1]


@lru_cache(maxsize=256)
def _weights(parties: tuple[int, ...]) -> tuple[int, ...]:
    """Return by what each party's value counts in the polynomial's value at 0.

    That is the product of all points over that of its own and of how far it is from
    the others.
    """
    points = [party + 1 for party in parties]
    steps = [[point ^ other or point for other in points] for point in points]
    bits = {step: _bits(step) for step in set().union(*steps)}  # they recur
    every = _product(bits[point] for point in points)
    return tuple(
        times(every, _inverse(_product(bits[step] for step in row))) for row in steps
    )


def _product(factors: Iterable[Sequence[int]]) -> int:
    return reduce(_scaled, factors, 1)


def _inverse(element: int) -> int:
    """Return what an element times is 1, by Euclid's algorithm on polynomials."""
    rest, divisor, known, inverse = POLYNOMIAL, element, 0, 1
    while divisor > 1:
        shift = rest.bit_length() - divisor.bit_length()
        if shift < 0:
            rest, divisor, known, inverse = divisor, rest, inverse, known
        else:
            rest, known = rest ^ divisor << shift, known ^ inverse << shift
    return inverse


def self_mask(seed: bytes, like: Codes) -> Codes:
    """Return the mask that a client alone puts on its update."""
    return _stream(derive(seed, "own mask", KEY), like)


def pair_mask(
    shared: bytes, like: Codes, label: str, one: Party, other: Party
) -> Codes:
    """Return the mask that two clients put on, one of them with a minus.

    The pair is part of it. One X25519 key can be written in two ways, so a client may
    advertise another one's; what it agrees on is then the same, and would cancel.
    ``like`` gives number and type, and the label is the round's.
    """
    pair = f"{min(one, other)}|{max(one, other)}"
    return _stream(derive(shared, f"pair mask|{label}|{pair}", KEY), like)


def pair_sign(client: Party, peer: Party) -> Any:
    """Return how ``client`` puts on the mask that it has with ``peer``."""
    return np.add if client < peer else np.subtract


def _stream(key: bytes, like: Codes) -> Codes:
    # Of little-endian order, so that all machines agree. A key is used for one stream.
    drawn = np.frombuffer(Stream(key).take(like.nbytes), like.dtype.newbyteorder("<"))
    return drawn.astype(like.dtype, copy=False)


GUARD = 8  # bits that an honest sum leaves empty, so that most others are noticed


@dataclass(frozen=True)
class FixedPoint:
    """How numbers are coded where some parties sum them up.

    The step is the finest power of two at which the sum still fits. Each number is
    rounded to the nearest step, so the sum is off by at most parties * step / 2.

    Attributes:
        parties: How many numbers are summed at most.
        bits: 32 halves the bytes, for small numbers; 64 leaves room for one range that
            fits what all trainers send, tensors times numbers of records.
        largest: Magnitude up to which numbers can be coded, above 0.

    Raises:
        ConfigError: The step would be above 2^-10.

    Example:
        >>> code = FixedPoint(parties=10)
        >>> code.step == 2.0**-31
        True
        >>> code.decode(code.encode(np.array([0.5, -3.0])))
        array([ 0.5, -3. ])
    """

    parties: int
    bits: Literal[32, 64] = 64
    largest: float = 2.0**20

    def __post_init__(self) -> None:
        if self.step > COARSEST:
            raise ConfigError(
                f"{self.bits} bits code sums of {self.parties} numbers up to "
                f"{self.largest:g} in steps of {self.step:g}, and {COARSEST:g} is the "
                "coarsest. Use 64 bits, or a smaller range."
            )

    @property
    def step(self) -> float:
        """The distance between neighbouring codes, a power of two."""
        top = math.floor(math.log2(self.parties * self.largest)) + 1
        return 2.0 ** (top - (self.bits - 1 - GUARD))

    @property
    def dtype(self) -> type[Any]:
        """The unsigned type whose overflow is the modulus."""
        return np.uint64 if self.bits == 64 else np.uint32

    def encode(
        self, numbers: Float64[np.ndarray, " n"], whose: str = "An update"
    ) -> Codes:
        """Return the nearest codes.

        Raises:
            TrainingError: A number is out of range. Clipping it would change the sum
                without a word.
        """
        extreme = float(np.abs(numbers).max(initial=0.0))
        if not extreme <= self.largest:
            raise TrainingError(
                f"{whose} reaches {extreme:.4g}, and the fixed-point code of masked "
                f"sums holds up to {self.largest:.7g}. Lower the learning rate, clip "
                "updates, or train with ideal secure aggregation."
            )
        steps = np.rint(numbers / self.step).astype(np.int64)
        return steps.astype(self.dtype)  # modulo 2^bits

    def decode(self, codes: Codes) -> Float64[np.ndarray, " n"]:
        """Return the numbers; the upper half of the codes is negative."""
        return self._signed(codes) * self.step

    def fits(self, codes: Codes) -> bool:
        """Say whether honest parties' numbers can sum up to this.

        Each number that is uniform instead passes with a chance of about 2^-8.
        """
        most = self.parties * math.floor(self.largest / self.step + 0.5)
        steps = self._signed(codes)
        return bool(((steps <= most) & (steps >= -most)).all())

    def _signed(self, codes: Codes) -> Int64[np.ndarray, " n"]:
        kind = np.int64 if self.bits == 64 else np.int32
        return codes.view(kind).astype(np.int64)
