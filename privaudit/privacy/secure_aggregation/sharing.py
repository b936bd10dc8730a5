"""Shamir's secret sharing of 16 bytes, over the field of 2^128 elements.

Field, polynomial and the form of shares are those of PyCryptodome's
``Crypto.Protocol.SecretSharing``, and either can read the other's shares. That one
draws its coefficients from the operating system and takes no others, so that no run
could be repeated or resumed with it; and it inverts anew for each secret.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from privaudit.privacy.secure_aggregation.primitives import SEED

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
    return _value((max(one, other), 0), min(one, other))


def _value(coefficients: Sequence[int], x: int) -> int:
    """Return a polynomial's value, its highest coefficient first.

    Products are made in place: splitting for 100 clients takes a million of them.
    """
    value = 0
    for coefficient in coefficients:
        power, value, left = value, coefficient, x
        while left:
            if left & 1:
                value ^= power
            power <<= 1
            if power >> DEGREE:
                power ^= POLYNOMIAL
            left >>= 1
    return value


@lru_cache(maxsize=256)
def _weights(parties: tuple[int, ...]) -> tuple[int, ...]:
    """Return by what each party's value counts in the polynomial's value at 0."""
    points = [party + 1 for party in parties]
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = times(above, other), times(below, point ^ other)
        weights.append(times(above, _inverse(below)))
    return tuple(weights)


def _inverse(element: int) -> int:
    """Return the power 2^128 - 2, by squaring."""
    inverse, square = 1, element
    for _ in range(DEGREE - 1):
        square = times(square, square)
        inverse = times(inverse, square)
    return inverse
