from fractions import Fraction
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, TrainingError
from privaudit_labs.secure_aggregation.primitives import (
    FixedPoint,
    combine,
    split,
    times,
)
from tests.labs.secure_aggregation.bounds import error_of_sum


def test_two_numbers_and_their_sum_by_hand() -> None:
    """Two numbers up to 1: 23 bits for magnitudes above the guard, so steps of 2^-21.

    2 x 1 = 2^1 must lie below 2^2, and 2^2 / 2^(31 - 8) is 2^-21.
    """
    code = FixedPoint(2, bits=32, largest=1.0)
    assert code.step == 2.0**-21
    assert error_of_sum(code) == 2.0**-21
    codes = code.encode(np.array([0.5, -(2.0**-21)]))
    assert codes.tolist() == [2**20, 2**32 - 1]
    assert code.decode(codes + codes).tolist() == [1.0, -(2.0**-20)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=12),
    st.sampled_from([32, 64]),
)
def test_a_sum_is_off_by_no_more_than_is_said(
    numbers: list[float], bits: Literal[32, 64]
) -> None:
    code = FixedPoint(len(numbers), bits, largest=50.0)
    total = np.zeros(1, dtype=code.dtype)
    for number in numbers:
        total = total + code.encode(np.array([number]))
    assert code.fits(total)
    exact = sum(map(Fraction, numbers))
    steps = int(total.astype(np.uint64)[0])
    signed = steps - 2**bits if steps >= 2 ** (bits - 1) else steps
    assert abs(Fraction(signed) * Fraction(code.step) - exact) <= Fraction(
        error_of_sum(code)
    )


@pytest.mark.parametrize("parties", [1, 2, 3, 4, 7, 8, 100, 1000])
def test_extreme_sums_do_not_run_over(parties: int) -> None:
    code = FixedPoint(parties)
    top = np.full(1, code.largest)
    for sign in (1.0, -1.0):
        codes = code.encode(sign * top)
        total = codes * np.uint64(parties)
        assert code.fits(total)
        assert code.decode(total)[0] == sign * parties * code.largest


@pytest.mark.parametrize("number", [1.0001, -2.0, np.inf, np.nan])
def test_what_is_out_of_range_is_refused(number: float) -> None:
    code = FixedPoint(3, largest=1.0)
    with pytest.raises(TrainingError, match=r"Its upload reaches .* holds up to 1\."):
        code.encode(np.array([0.0, number]), "Its upload")


def test_32_bits_are_refused_for_a_range_that_they_code_too_coarsely() -> None:
    with pytest.raises(ConfigError, match=r"in steps of 2, and .* Use 64 bits"):
        FixedPoint(10, bits=32)


def test_most_of_what_is_uniform_cannot_be_a_sum(rng: np.random.Generator) -> None:
    code = FixedPoint(10)
    drawn = rng.integers(0, 2**64, size=20_000, dtype=np.uint64)
    passed = np.mean([code.fits(drawn[i : i + 1]) for i in range(2000)])
    assert passed < 0.01
    assert not code.fits(drawn)


SECRET = bytes(range(16))


def pycryptodome() -> Any:
    return pytest.importorskip("Crypto.Protocol.SecretSharing").Shamir


def elements() -> st.SearchStrategy[int]:
    return st.integers(0, 2**128 - 1)


def test_a_line_through_the_secret_is_shared_by_hand() -> None:
    """p(x) = 7 + 5 x: 5 x 2 is 10, 5 x 3 is 15, and plus is exclusive or."""
    shares = split((7).to_bytes(16), 2, range(3), (5).to_bytes(16))
    assert [int.from_bytes(share) for share in shares.values()] == [
        7 ^ 5,
        7 ^ 10,
        7 ^ 15,
    ]
    assert combine({0: shares[0], 2: shares[2]}) == (7).to_bytes(16)


@given(elements(), elements(), elements())
def test_the_elements_form_a_field(a: int, b: int, c: int) -> None:
    assert times(a, b) == times(b, a) < 2**128
    assert times(a, times(b, c)) == times(times(a, b), c)
    assert times(a, b ^ c) == times(a, b) ^ times(a, c)
    assert times(a, 1) == a


def test_pycryptodome_reads_our_shares_and_we_read_its() -> None:
    shamir = pycryptodome()
    ours = split(SECRET, 4, range(7), bytes(range(100, 148)))
    theirs = shamir.split(4, 7, SECRET)
    for some in combinations(range(7), 4):
        assert shamir.combine([(i + 1, ours[i]) for i in some]) == SECRET
        assert combine({i: dict(theirs)[i + 1] for i in some}) == SECRET


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=16, max_size=16), st.data())
def test_enough_shares_give_the_secret_back(secret: bytes, data: st.DataObject) -> None:
    parties = data.draw(st.integers(2, 30))
    threshold = data.draw(st.integers(1, parties))
    count = 16 * (threshold - 1)
    random = data.draw(st.binary(min_size=count, max_size=count))
    shares = split(secret, threshold, range(parties), random)
    some = data.draw(st.permutations(range(parties)))[:threshold]
    assert combine({i: shares[i] for i in some}) == secret


def test_too_few_shares_fit_every_secret() -> None:
    """Two points of a parabola: any value at 0 has one parabola through all three."""
    shares = split(SECRET, 3, range(5), bytes(range(50, 82)))
    for other in (bytes(16), b"\xff" * 16):
        third = pycryptodome().combine(  # the value at 3, from those at 0, 1, 2
            [(0 ^ 3, other), (1 ^ 3, shares[0]), (2 ^ 3, shares[1])]
        )
        assert combine({0: shares[0], 1: shares[1], 2: third}) == other
    assert combine({0: shares[0], 1: shares[1]}) != SECRET
