from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privaudit.core.errors import ConfigError, TrainingError
from privaudit.privacy.secure_aggregation.fixed_point import FixedPoint
from tests.privaudit.privacy.secure_aggregation.bounds import error_of_sum


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
