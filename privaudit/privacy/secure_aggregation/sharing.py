"""Shamir's secret sharing of 16 bytes, over the field of 2^128 elements.

Field, polynomial and the form of shares are those of PyCryptodome's
``Crypto.Protocol.SecretSharing``, and either can read the other's shares. That one
draws its coefficients from the operating system and takes no others, so that no run
could be repeated or resumed with it; and it inverts anew for each secret.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, reduce

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
